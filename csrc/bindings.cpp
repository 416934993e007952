// The kernels for Python: arrays of NumPy, or of anything that speaks DLPack, in and out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "dispatch.h"
#include "encoder.h"

namespace nb = nanobind;
using namespace slimformer;

namespace {

template <class Number, int axes>
using Array = nb::ndarray<const Number, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;
using Answer = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// Threads do not live on in a forked process, which gets its own; nor does whoever held the lock there.
Pool& pool() {
    static std::mutex* mutex = new std::mutex;
    static pid_t owner = 0;
    static Pool* shared = nullptr;
    static const int watched = pthread_atfork(nullptr, nullptr, [] { mutex = new std::mutex; });
    (void)watched;
    const std::lock_guard<std::mutex> lock(*mutex);
    if (owner != getpid()) {
        shared = new Pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
        owner = getpid();
    }
    return *shared;
}

const Kernels& kernels_of(const std::string& name) {
    const Kernels* kernels = find_kernels(name.empty() ? nullptr : name.c_str());
    if (kernels == nullptr) throw InputError("this machine has no kernels `" + name + "`");
    return *kernels;
}

// The value of an enumeration by its name.
template <class Value>
Value named(const char* what, const std::string& name, std::initializer_list<const char*> names) {
    int value = 0;
    for (const char* each : names) {
        if (name == each) return static_cast<Value>(value);
        value++;
    }
    throw InputError("there is no " + std::string(what) + " `" + name + "`");
}

Activation activation_of(const std::string& name) {
    return named<Activation>("activation", name, {"none", "gelu", "relu", "silu", "tanh"});
}

void need(bool fits, const char* what) {
    if (!fits) throw InputError(what);
}

// Python's lock is given back while it lives. A thread that asks for the lock when the interpreter has begun to end is
// ended by Python before 3.14, which unwinds its stack, and C++ aborts at the first function that must not be left so;
// it waits for the end of the process instead, as it does since.
class WithoutLock {
   public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    ~WithoutLock() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;

   private:
    PyThreadState* const state_;
};

// Memory for an array of NumPy, which owns it.
template <class Number>
nb::ndarray<nb::numpy, Number, nb::ndim<2>> new_array(std::size_t rows, std::size_t columns) {
    Number* memory = new Number[rows * columns];
    nb::capsule owner(memory, [](void* each) noexcept { delete[] static_cast<Number*>(each); });
    return {memory, {rows, columns}, owner};
}

Answer make_answer(std::size_t rows, std::size_t columns) { return new_array<float>(rows, columns); }

// A layout as Python tells it: base, digits, lowest code, stride, bytes, and the first and last code that is used.
using LayoutNumbers = std::tuple<int, int, int, int, int, int, int>;

Layout layout_of(const LayoutNumbers& numbers) {
    const auto [base, digits, lowest, stride, bytes, first, last] = numbers;
    return {base, digits, lowest, stride, bytes, first, last};
}

PackedRows packed_rows(const Array<std::uint8_t, 2>& codes, const Array<float, 2>& scales, int columns, int group,
                       const LayoutNumbers& layout) {
    need(codes.shape(0) < 1u << 31, "a table of this size");
    const PackedRows rows = {codes.data(), scales.data(), static_cast<int>(codes.shape(0)), columns, group,
                             layout_of(layout)};
    rows.check();
    need(codes.shape(1) == rows.row_bytes(), "codes of another number of columns");
    need(scales.shape(0) == codes.shape(0) && scales.shape(1) == rows.groups(), "one scale for each row and group");
    return rows;
}

const float* bias_of(const std::optional<Array<float, 1>>& bias, std::size_t rows) {
    need(!bias || bias->size() == rows, "one bias for each row");
    return bias ? bias->data() : nullptr;
}

void set_codes(Matrix& matrix, int first, const Array<std::uint8_t, 2>& codes, const Array<float, 2>& scales, int group,
               const LayoutNumbers& layout, const std::optional<Array<float, 1>>& bias) {
    const PackedRows rows = packed_rows(codes, scales, matrix.inputs(), group, layout);
    matrix.set_rows(first, rows, bias_of(bias, codes.shape(0)));
}

template <class Weight>
void set_floats(Matrix& matrix, int first, const Array<Weight, 2>& rows, const std::optional<Array<float, 1>>& bias) {
    need(rows.shape(0) < 1u << 31 && static_cast<int>(rows.shape(1)) == matrix.inputs(), "rows of another width");
    matrix.set_rows(first, rows.data(), static_cast<int>(rows.shape(0)), bias_of(bias, rows.shape(0)));
}

Answer multiply(const Matrix& matrix, const Array<float, 2>& x, const std::string& activation, int threads,
                const std::string& isa) {
    need(static_cast<int>(x.shape(1)) == matrix.inputs(), "inputs of another width than the matrix");
    need(x.shape(0) < kMost, "too many rows at once");
    const Kernels& kernels = kernels_of(isa);
    const Activation chosen = activation_of(activation);
    Answer out = make_answer(x.shape(0), matrix.outputs());
    const int rows = static_cast<int>(x.shape(0));
    {
        const WithoutLock unlocked;
        matrix.multiply(kernels, pool(), threads, x.data(), rows, chosen, out.data());
    }
    return out;
}

// Codes and scales in the order that the kernels read, for callers that keep them: [panels][bytes] and
// [groups][outputs, rounded up]. What is made of them later needs no memory beside them.
nb::tuple make_panels(const Array<std::uint8_t, 2>& codes, const Array<float, 2>& scales, int columns, int group,
                      const LayoutNumbers& layout) {
    const PackedRows rows = packed_rows(codes, scales, columns, group, layout);
    Matrix matrix(rows.rows, columns, rows.layout, group);
    matrix.set_rows(0, rows, nullptr);
    const CodeMatrix made = matrix.codes();
    auto panels = new_array<std::uint8_t>(parts_of(rows.rows, kColumns), panel_bytes(columns, made.bits));
    auto panel_scales = new_array<float>(parts_of(columns, made.group), padded(rows.rows, kColumns));
    std::copy_n(made.panels, panels.size(), panels.data());
    std::copy_n(made.scales, panel_scales.size(), panel_scales.data());
    return nb::make_tuple(panels, panel_scales);
}

// What `make_panels` gave.
struct Panels {
    Array<std::uint8_t, 2> panels;
    Array<float, 2> scales;
    int outputs, inputs, group;
    LayoutNumbers layout;

    CodeMatrix view() const {
        CodeMatrix codes = code_matrix(outputs, inputs, layout_of(layout), group);
        need(panels.shape(0) == static_cast<std::size_t>(parts_of(outputs, kColumns)) &&
                 panels.shape(1) == panel_bytes(inputs, codes.bits),
             "panels of another matrix");
        need(scales.shape(0) == static_cast<std::size_t>(parts_of(inputs, codes.group)) &&
                 scales.shape(1) == padded(outputs, kColumns),
             "scales of another matrix");
        codes.panels = panels.data(), codes.scales = scales.data();
        return codes;
    }
};

Answer multiply_panels(const Panels& panels, const Array<float, 2>& x, const std::optional<Array<float, 1>>& bias,
                       int threads, const std::string& isa) {
    CodeMatrix codes = panels.view();
    need(static_cast<int>(x.shape(1)) == codes.inputs, "inputs of another width than the matrix");
    need(x.shape(0) < kMost, "too many rows at once");
    Memory<float> whole_bias(padded(codes.outputs, kColumns), 0.0f);
    if (const float* given = bias_of(bias, codes.outputs)) std::copy_n(given, codes.outputs, whole_bias.data());
    codes.bias = whole_bias.data();
    const Kernels& kernels = kernels_of(isa);
    const int rows = static_cast<int>(x.shape(0));
    Answer out = make_answer(rows, codes.outputs);
    {
        const WithoutLock unlocked;
        multiply_codes(kernels, pool(), threads, codes, x.data(), rows, Activation::none, out.data());
    }
    return out;
}

Answer look_up(const Panels& panels, const Array<std::int64_t, 1>& ids) {
    const CodeMatrix codes = panels.view();
    for (std::size_t i = 0; i < ids.size(); i++)
        if (ids.data()[i] < 0 || ids.data()[i] >= codes.outputs) throw nb::index_error("index out of range in self");
    Answer out = make_answer(ids.size(), codes.inputs);
    const WithoutLock unlocked;
    const std::size_t outputs = padded(codes.outputs, kColumns);
    std::vector<std::int8_t> row(codes.inputs);
    for (std::size_t i = 0; i < ids.size(); i++) {
        const int id = static_cast<int>(ids.data()[i]);
        float* to = out.data() + i * codes.inputs;
        read_row(codes, id, row.data());
        for (int k = 0; k < codes.inputs; k++)
            to[k] = static_cast<float>(row[k]) * codes.scales[k / codes.group * outputs + id];
    }
    return out;
}

nb::ndarray<nb::numpy, std::int8_t, nb::ndim<2>> codes_of(const Panels& panels) {
    const CodeMatrix codes = panels.view();
    auto out = new_array<std::int8_t>(codes.outputs, codes.inputs);
    const WithoutLock unlocked;
    for (int row = 0; row < codes.outputs; row++)
        read_row(codes, row, out.data() + static_cast<std::size_t>(row) * codes.inputs);
    return out;
}

FloatNorm make_norm(const Array<float, 1>& weight, const std::optional<Array<float, 1>>& bias, float epsilon) {
    need(weight.size() >= 1 && (!bias || bias->size() == weight.size()), "a norm with one bias for each weight");
    FloatNorm norm = {{weight.data(), weight.data() + weight.size()}, std::vector<float>(weight.size(), 0.0f), epsilon};
    if (bias) std::copy_n(bias->data(), bias->size(), norm.bias.data());
    return norm;
}

std::shared_ptr<Rotation> make_rotation(const Array<float, 2>& cosines, const Array<float, 2>& sines) {
    need(cosines.shape(0) == sines.shape(0) && cosines.shape(1) == sines.shape(1), "as many sines as cosines");
    return std::make_shared<Rotation>(Rotation{{cosines.data(), cosines.data() + cosines.size()},
                                               {sines.data(), sines.data() + sines.size()}});
}

// An encoder, and the arrays that it looks rows up in, which Python must not forget before it.
struct BoundEncoder {
    std::unique_ptr<Encoder> encoder;
    std::vector<nb::object> tables;
};

template <class Weight>
const Weight* float_table(const Array<Weight, 2>& given, Table& table) {
    need(given.shape(0) < 1u << 31 && given.shape(1) < kMost, "a table of this size");
    table.rows = static_cast<int>(given.shape(0));
    table.columns = static_cast<int>(given.shape(1));
    return given.data();
}

// Rows to look up: nothing, floats, bits of bfloat16, or codes with scales, columns, columns of a group, and layout.
Table table_of(nb::handle given) {
    Table table;
    if (given.is_none()) return table;
    if (!nb::isinstance<nb::tuple>(given)) {
        if (Array<std::uint16_t, 2> bits; nb::try_cast(given, bits, false))
            table.bfloat16 = float_table(bits, table);
        else
            table.floats = float_table(nb::cast<Array<float, 2>>(given, false), table);
        return table;
    }
    const nb::tuple parts = nb::cast<nb::tuple>(given);
    need(parts.size() == 5, "codes, scales, columns, columns of a group and layout of a packed table");
    table.columns = nb::cast<int>(parts[2]);
    table.packed = packed_rows(nb::cast<Array<std::uint8_t, 2>>(parts[0], false), nb::cast<Array<float, 2>>(parts[1], false),
                               table.columns, nb::cast<int>(parts[3]), nb::cast<LayoutNumbers>(parts[4]));
    table.rows = table.packed.rows;
    return table;
}

Answer answer(const BoundEncoder& bound, const Input& input, int threads, const std::string& isa) {
    const Encoder& encoder = *bound.encoder;
    const Kernels& kernels = kernels_of(isa);
    Answer out = make_answer(encoder.pooling() == Pooling::tokens ? input.tokens() : input.sequences, encoder.outputs());
    {
        const WithoutLock unlocked;
        encoder.run(kernels, pool(), threads, input, out.data());
    }
    return out;
}

Answer run(const BoundEncoder& bound, const Array<std::int32_t, 1>& ids, const std::optional<Array<std::int32_t, 1>>& types,
           const Array<std::int32_t, 1>& starts, int threads, const std::string& isa) {
    need(!bound.encoder->embeddings().images, "tokens for a model of images");
    need(starts.size() >= 1 && starts.size() < 1u << 20, "where each sequence begins, and where the last one ends");
    const std::int32_t* begin = starts.data();
    const int sequences = static_cast<int>(starts.size()) - 1;
    need(static_cast<std::size_t>(begin[sequences]) == ids.size(), "sequences that end where the tokens do");
    need(!types || types->size() == ids.size(), "a type for each token");
    return answer(bound, {ids.data(), types ? types->data() : nullptr, nullptr, begin, sequences}, threads, isa);
}

// [images][patches][inputs of the projection]
Answer run_images(const BoundEncoder& bound, const Array<float, 3>& patches, int threads, const std::string& isa) {
    const Encoder& encoder = *bound.encoder;
    const Embeddings& embeddings = encoder.embeddings();
    need(embeddings.images, "images for a model of texts");
    const int longest = encoder.shape().longest;
    need(patches.shape(0) >= 1 && patches.shape(0) < std::min(1 << 20, kMost / longest), "1 image or more, and fewer of them");
    need(static_cast<int>(patches.shape(1)) == longest - embeddings.words.rows &&
             static_cast<int>(patches.shape(2)) == embeddings.projection->inputs(),
         "images of another size");
    std::vector<std::int32_t> starts(patches.shape(0) + 1);
    for (std::size_t i = 0; i < starts.size(); i++) starts[i] = static_cast<std::int32_t>(i) * longest;
    return answer(bound, {nullptr, nullptr, patches.data(), starts.data(), static_cast<int>(patches.shape(0))}, threads, isa);
}

}  // namespace

NB_MODULE(_native, module) {
    nb::set_leak_warnings(false);  // threads that live as long as the process hold what they run
    nb::exception<InputError>(module, "InputError", PyExc_ValueError);

    module.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const InstructionSet& set : instruction_sets())
            if (set.is_here) names.emplace_back(set.kernels->name);
        return names;
    });
    module.def("threads", [] { return pool().threads(); });

    nb::class_<Matrix>(module, "Matrix")
        .def(nb::init<int, int, bool>(), nb::arg("outputs"), nb::arg("inputs"), nb::arg("bfloat16") = false)
        .def(
            "__init__",
            [](Matrix* self, int outputs, int inputs, const LayoutNumbers& layout, int group) {
                new (self) Matrix(outputs, inputs, layout_of(layout), group);
            },
            nb::arg("outputs"), nb::arg("inputs"), nb::arg("layout"), nb::arg("group"))
        .def_prop_ro("outputs", &Matrix::outputs)
        .def_prop_ro("inputs", &Matrix::inputs)
        .def_prop_ro("bytes", &Matrix::bytes)
        .def_prop_ro("rounds", &Matrix::rounds)
        .def("set_codes", &set_codes, nb::arg("first"), nb::arg("codes"), nb::arg("scales"), nb::arg("group"),
             nb::arg("layout"), nb::arg("bias").none())
        .def("set_floats", &set_floats<float>, nb::arg("first"), nb::arg("rows"), nb::arg("bias").none())
        .def("set_bfloat16", &set_floats<std::uint16_t>, nb::arg("first"), nb::arg("rows"), nb::arg("bias").none())
        .def("multiply", &multiply, nb::arg("x"), nb::arg("activation") = "none", nb::arg("threads") = 1,
             nb::arg("isa") = "");

    module.def("make_panels", &make_panels, nb::arg("codes"), nb::arg("scales"), nb::arg("columns"), nb::arg("group"),
               nb::arg("layout"));
    nb::class_<Panels>(module, "Panels")
        .def(
            "__init__",
            [](Panels* self, const Array<std::uint8_t, 2>& panels, const Array<float, 2>& scales, int outputs, int inputs,
               int group, const LayoutNumbers& layout) {
                new (self) Panels{panels, scales, outputs, inputs, group, layout};
            },
            nb::arg("panels"), nb::arg("scales"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("group"), nb::arg("layout"))
        .def("multiply", &multiply_panels, nb::arg("x"), nb::arg("bias").none(), nb::arg("threads") = 1, nb::arg("isa") = "")
        .def("look_up", &look_up, nb::arg("ids"))
        .def("codes", &codes_of);

    nb::class_<FloatNorm>(module, "Norm")
        .def(
            "__init__",
            [](FloatNorm* self, const Array<float, 1>& weight, const std::optional<Array<float, 1>>& bias, float epsilon) {
                new (self) FloatNorm(make_norm(weight, bias, epsilon));
            },
            nb::arg("weight"), nb::arg("bias").none(), nb::arg("epsilon"));

    nb::class_<Rotation>(module, "Rotation").def(nb::new_(&make_rotation), nb::arg("cosines"), nb::arg("sines"));

    nb::class_<BoundEncoder>(module, "Encoder")
        .def(
            "__init__",
            [](BoundEncoder* self, int hidden, int heads, int longest, const std::string& activation, bool pre_norm,
               bool gated, nb::object words, nb::object positions, nb::object types,
               const std::optional<FloatNorm>& norm, std::shared_ptr<Matrix> projection, int position_offset, bool images) {
                const Shape shape = {hidden, heads, longest, activation_of(activation), pre_norm, gated};
                Embeddings embeddings = {table_of(words),           table_of(positions), table_of(types), norm.value_or(FloatNorm()),
                                         std::move(projection), position_offset,     images};
                new (self) BoundEncoder{std::make_unique<Encoder>(shape, std::move(embeddings)), {words, positions, types}};
            },
            nb::arg("hidden"), nb::arg("heads"), nb::arg("longest"), nb::arg("activation"), nb::arg("pre_norm"),
            nb::arg("gated"), nb::arg("words"), nb::arg("positions").none(), nb::arg("types").none(),
            nb::arg("norm").none(), nb::arg("projection").none(), nb::arg("position_offset"), nb::arg("images"))
        .def(
            "add_block",
            [](BoundEncoder& self, std::shared_ptr<Matrix> qkv, std::shared_ptr<Matrix> output, std::shared_ptr<Matrix> up,
               std::shared_ptr<Matrix> down, const std::optional<FloatNorm>& attention_norm,
               const std::optional<FloatNorm>& output_norm, int window, std::shared_ptr<Rotation> rotation) {
                self.encoder->add_block({std::move(qkv), std::move(output), std::move(up), std::move(down),
                                         attention_norm.value_or(FloatNorm()), output_norm.value_or(FloatNorm()), window,
                                         std::move(rotation)});
            },
            nb::arg("qkv"), nb::arg("output"), nb::arg("up"), nb::arg("down"), nb::arg("attention_norm").none(),
            nb::arg("output_norm").none(), nb::arg("window"), nb::arg("rotation").none())
        .def(
            "add_head_layer",
            [](BoundEncoder& self, std::shared_ptr<Matrix> matrix, const std::string& activation,
               const std::optional<FloatNorm>& norm) {
                self.encoder->add_head_layer({std::move(matrix), activation_of(activation), norm.value_or(FloatNorm())});
            },
            nb::arg("matrix"), nb::arg("activation"), nb::arg("norm").none())
        .def(
            "set_final_norm",
            [](BoundEncoder& self, const FloatNorm& norm) { self.encoder->set_final_norm(norm); }, nb::arg("norm"))
        .def(
            "set_position_bias",
            [](BoundEncoder& self, const Array<float, 2>& bias) {
                const Shape& shape = self.encoder->shape();
                need(static_cast<int>(bias.shape(0)) == shape.heads && static_cast<int>(bias.shape(1)) == 2 * shape.longest - 1,
                     "a bias for each head and distance");
                self.encoder->set_position_bias(bias.data());
            },
            nb::arg("bias"))
        .def(
            "pool",
            [](BoundEncoder& self, const std::string& name) {
                self.encoder->set_pooling(named<Pooling>("pooling", name, {"tokens", "first", "mean"}));
            },
            nb::arg("name"))
        .def_prop_ro("longest", [](const BoundEncoder& self) { return self.encoder->shape().longest; })
        .def("run", &run, nb::arg("ids"), nb::arg("types").none(), nb::arg("starts"), nb::arg("threads") = 1,
             nb::arg("isa") = "")
        .def("run_images", &run_images, nb::arg("patches"), nb::arg("threads") = 1, nb::arg("isa") = "");
}
