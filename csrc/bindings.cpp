// The kernels for Python: arrays of NumPy, or of anything that speaks DLPack, in and out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <optional>

#include "dispatch.h"
#include "encoder.h"

namespace nb = nanobind;
using namespace slimformer;

namespace {

template <class Number, int axes>
using Array = nb::ndarray<const Number, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;
using Made = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

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

Activation activation_of(const std::string& name) {
    const char* names[] = {"none", "gelu", "relu", "silu", "tanh"};
    for (int i = 0; i < 5; i++)
        if (name == names[i]) return static_cast<Activation>(i);
    throw InputError("there is no activation `" + name + "`");
}

void need(bool fits, const char* what) {
    if (!fits) throw InputError(what);
}

Made make(std::size_t rows, std::size_t columns) {
    float* memory = new float[rows * columns];
    nb::capsule owner(memory, [](void* each) noexcept { delete[] static_cast<float*>(each); });
    return Made(memory, {rows, columns}, owner);
}

PackedRows packed_rows(const Array<std::uint8_t, 2>& codes, int columns, int base, int digits, int lowest) {
    need(base >= 2 && digits >= 1 && columns >= 1, "a layout without digits");
    int most = 1;
    for (int i = 0; i < digits; i++) need((most *= base) <= 256, "digits that do not fit into a byte");
    const PackedRows rows = {codes.data(), static_cast<int>(codes.shape(0)), columns, {base, digits, lowest}};
    need(codes.shape(0) < 1u << 31 && codes.shape(1) == rows.row_bytes(), "codes of another number of columns");
    return rows;
}

void set_rows(Matrix& matrix, int first, const Array<std::uint8_t, 2>& codes, int base, int digits, int lowest,
              const Array<float, 1>& scales, const std::optional<Array<float, 1>>& bias) {
    const PackedRows rows = packed_rows(codes, matrix.inputs(), base, digits, lowest);
    need(scales.size() == codes.shape(0), "one scale for each row");
    need(!bias || bias->size() == codes.shape(0), "one bias for each row");
    matrix.set_rows(first, rows, scales.data(), bias ? bias->data() : nullptr);
}

Made multiply(const Matrix& matrix, const Array<float, 2>& x, const std::string& activation, int threads,
              const std::string& isa) {
    need(static_cast<int>(x.shape(1)) == matrix.inputs(), "inputs of another width than the matrix");
    need(x.shape(0) < 1u << 24, "too many rows at once");
    const Kernels& kernels = kernels_of(isa);
    const Activation chosen = activation_of(activation);
    Made out = make(x.shape(0), matrix.outputs());
    const int rows = static_cast<int>(x.shape(0));
    {
        nb::gil_scoped_release release;
        matrix.multiply(kernels, pool(), threads, x.data(), rows, chosen, out.data());
    }
    return out;
}

FloatNorm norm_of(const Array<float, 1>& weight, const Array<float, 1>& bias, float epsilon, int width) {
    need(static_cast<int>(weight.size()) == width && static_cast<int>(bias.size()) == width, "a norm of another width");
    return {{weight.data(), weight.data() + width}, {bias.data(), bias.data() + width}, epsilon};
}

// An encoder, and what Python must not forget while it is used.
struct Kept {
    std::unique_ptr<Encoder> encoder;
    std::vector<nb::object> arrays;
};

Table float_table(const Array<float, 2>& floats, int width) {
    need(static_cast<int>(floats.shape(1)) == width, "a table of another width");
    Table table;
    table.floats = floats.data();
    table.rows = static_cast<int>(floats.shape(0));
    return table;
}

using Packed = nb::typed<nb::tuple, nb::object, nb::object, int, int, int>;

Table table_of(nb::handle table, int width) {
    if (!nb::isinstance<nb::tuple>(table)) return float_table(nb::cast<Array<float, 2>>(table, false), width);
    const nb::tuple parts = nb::cast<nb::tuple>(table);
    need(parts.size() == 5, "codes, scales, base, digits and lowest code of a packed table");
    const auto codes = nb::cast<Array<std::uint8_t, 2>>(parts[0], false);
    const auto scales = nb::cast<Array<float, 1>>(parts[1], false);
    Table result;
    result.packed = packed_rows(codes, width, nb::cast<int>(parts[2]), nb::cast<int>(parts[3]), nb::cast<int>(parts[4]));
    need(scales.size() == codes.shape(0), "one scale for each row");
    result.scales = scales.data();
    result.rows = result.packed.rows;
    return result;
}

Made run(const Kept& kept, const Array<std::int32_t, 1>& ids, const std::optional<Array<std::int32_t, 1>>& types,
         const Array<std::int32_t, 1>& starts, int threads, const std::string& isa) {
    need(starts.size() >= 1 && starts.size() < 1u << 24, "where each sequence begins, and where the last one ends");
    const std::int32_t* begin = starts.data();
    const int sequences = static_cast<int>(starts.size()) - 1;
    need(begin[0] == 0, "the first sequence begins at 0");
    for (int i = 0; i < sequences; i++) need(begin[i] < begin[i + 1], "sequences of at least one token");
    need(static_cast<std::size_t>(begin[sequences]) == ids.size(), "sequences that end where the tokens do");
    need(ids.size() < 1u << 24, "too many tokens at once");
    need(!types || types->size() == ids.size(), "a type for each token");
    const Encoder& encoder = *kept.encoder;
    const Kernels& kernels = kernels_of(isa);
    Made out = make(encoder.pooling() == Pooling::tokens ? ids.size() : sequences, encoder.outputs());
    {
        nb::gil_scoped_release release;
        encoder.run(kernels, pool(), threads, ids.data(), types ? types->data() : nullptr, begin, sequences, out.data());
    }
    return out;
}

}  // namespace

NB_MODULE(_native, module) {
    nb::exception<InputError>(module, "InputError", PyExc_ValueError);

    module.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const InstructionSet& set : instruction_sets())
            if (set.is_here) names.emplace_back(set.kernels->name);
        return names;
    });
    module.def("threads", [] { return pool().threads(); });

    nb::class_<Matrix>(module, "Matrix")
        .def(nb::init<int, int>(), nb::arg("outputs"), nb::arg("inputs"))
        .def_prop_ro("outputs", &Matrix::outputs)
        .def_prop_ro("inputs", &Matrix::inputs)
        .def_prop_ro("bytes", &Matrix::bytes)
        .def("set_rows", &set_rows, nb::arg("first"), nb::arg("codes"), nb::arg("base"), nb::arg("digits"),
             nb::arg("lowest"), nb::arg("scales"), nb::arg("bias").none())
        .def("multiply", &multiply, nb::arg("x"), nb::arg("activation") = "none", nb::arg("threads") = 1,
             nb::arg("isa") = "");

    nb::class_<Kept>(module, "Encoder")
        .def(
            "__init__",
            [](Kept* self, int hidden, int heads, int ffn, int position_offset, const std::string& activation,
               nb::object words, nb::object positions, nb::object types, const Array<float, 1>& norm_weight,
               const Array<float, 1>& norm_bias, float epsilon) {
                const Shape shape = {hidden, heads, ffn, position_offset, activation_of(activation)};
                new (self) Kept{std::make_unique<Encoder>(shape, table_of(words, hidden), table_of(positions, hidden),
                                                          types.is_none() ? Table() : table_of(types, hidden),
                                                          norm_of(norm_weight, norm_bias, epsilon, hidden)),
                                {words, positions, types}};
            },
            nb::arg("hidden"), nb::arg("heads"), nb::arg("ffn"), nb::arg("position_offset"), nb::arg("activation"),
            nb::arg("words"), nb::arg("positions"), nb::arg("types").none(), nb::arg("norm_weight"),
            nb::arg("norm_bias"), nb::arg("epsilon"))
        .def(
            "add_block",
            [](Kept& self, std::shared_ptr<Matrix> qkv, std::shared_ptr<Matrix> output,
               const Array<float, 1>& attention_weight, const Array<float, 1>& attention_bias,
               std::shared_ptr<Matrix> up, std::shared_ptr<Matrix> down, const Array<float, 1>& output_weight,
               const Array<float, 1>& output_bias, float epsilon) {
                const int hidden = self.encoder->hidden();
                self.encoder->add_block({std::move(qkv), std::move(output), std::move(up), std::move(down),
                                         norm_of(attention_weight, attention_bias, epsilon, hidden),
                                         norm_of(output_weight, output_bias, epsilon, hidden)});
            },
            nb::arg("qkv"), nb::arg("output"), nb::arg("attention_norm_weight"), nb::arg("attention_norm_bias"),
            nb::arg("up"), nb::arg("down"), nb::arg("output_norm_weight"), nb::arg("output_norm_bias"),
            nb::arg("epsilon"))
        .def(
            "add_ternary_layer",
            [](Kept& self, std::shared_ptr<Matrix> matrix, const std::string& activation) {
                const int inputs = matrix->inputs(), outputs = matrix->outputs();
                self.encoder->add_head_layer({std::move(matrix), {}, {}, inputs, outputs, activation_of(activation)});
            },
            nb::arg("matrix"), nb::arg("activation"))
        .def(
            "add_float_layer",
            [](Kept& self, const Array<float, 2>& weight, const Array<float, 1>& bias, const std::string& activation) {
                const int outputs = static_cast<int>(weight.shape(0)), inputs = static_cast<int>(weight.shape(1));
                need(static_cast<int>(bias.size()) == outputs, "one bias for each row");
                self.encoder->add_head_layer({nullptr,
                                              {weight.data(), weight.data() + weight.size()},
                                              {bias.data(), bias.data() + bias.size()},
                                              inputs,
                                              outputs,
                                              activation_of(activation)});
            },
            nb::arg("weight"), nb::arg("bias"), nb::arg("activation"))
        .def(
            "pool", [](Kept& self, const std::string& name) {
                const char* names[] = {"tokens", "first", "mean"};
                for (int i = 0; i < 3; i++)
                    if (name == names[i]) return self.encoder->set_pooling(static_cast<Pooling>(i));
                throw InputError("there is no pooling `" + name + "`");
            },
            nb::arg("name"))
        .def("run", &run, nb::arg("ids"), nb::arg("types").none(), nb::arg("starts"), nb::arg("threads") = 1,
             nb::arg("isa") = "");
}
