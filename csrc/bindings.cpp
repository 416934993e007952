// The kernels for Python: arrays of NumPy, or of anything that speaks DLPack, in and out.
#include "bindings.h"

#include <algorithm>

using namespace slimformer;

namespace {

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

FloatNorm make_norm(const Array<float, 1>& weight, const std::optional<Array<float, 1>>& bias, float epsilon, bool centred) {
    need(weight.size() >= 1 && (!bias || bias->size() == weight.size()), "a norm with one bias for each weight");
    FloatNorm norm = {{weight.data(), weight.data() + weight.size()}, std::vector<float>(weight.size(), 0.0f), epsilon, centred};
    if (bias) std::copy_n(bias->data(), bias->size(), norm.bias.data());
    return norm;
}

std::shared_ptr<Rotation> make_rotation(const Array<float, 2>& cosines, const Array<float, 2>& sines) {
    need(cosines.shape(0) == sines.shape(0) && cosines.shape(1) == sines.shape(1), "as many sines as cosines");
    return std::make_shared<Rotation>(Rotation{{cosines.data(), cosines.data() + cosines.size()},
                                               {sines.data(), sines.data() + sines.size()}});
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
    return answer(bound, input_of(*bound.encoder, ids, types, starts), threads, isa);
}

// [images][patches][inputs of the projection]
Answer run_images(const BoundEncoder& bound, const Array<float, 3>& patches, int threads, const std::string& isa) {
    std::vector<std::int32_t> starts;
    return answer(bound, images_of(*bound.encoder, patches, starts), threads, isa);
}

}  // namespace

namespace slimformer {

Input input_of(const Encoder& encoder, const Array<std::int32_t, 1>& ids, const std::optional<Array<std::int32_t, 1>>& types,
               const Array<std::int32_t, 1>& starts) {
    need(!encoder.embeddings().images, "tokens for a model of images");
    need(starts.size() >= 1 && starts.size() < 1u << 20, "where each sequence begins, and where the last one ends");
    const std::int32_t* begin = starts.data();
    const int sequences = static_cast<int>(starts.size()) - 1;
    need(static_cast<std::size_t>(begin[sequences]) == ids.size(), "sequences that end where the tokens do");
    need(!types || types->size() == ids.size(), "a type for each token");
    return {ids.data(), types ? types->data() : nullptr, nullptr, begin, sequences};
}

Input images_of(const Encoder& encoder, const Array<float, 3>& patches, std::vector<std::int32_t>& starts) {
    const Embeddings& embeddings = encoder.embeddings();
    need(embeddings.images, "images for a model of texts");
    const int longest = encoder.shape().longest;
    need(patches.shape(0) >= 1 && patches.shape(0) < std::min(1u << 20, static_cast<unsigned>(kMost / longest)), "1 image or more, and fewer of them");
    need(static_cast<int>(patches.shape(1)) == longest - embeddings.words.rows &&
             static_cast<int>(patches.shape(2)) == embeddings.projection->inputs(),
         "images of another size");
    starts.resize(patches.shape(0) + 1);
    for (std::size_t i = 0; i < starts.size(); i++) starts[i] = static_cast<std::int32_t>(i) * longest;
    return {nullptr, nullptr, patches.data(), starts.data(), static_cast<int>(patches.shape(0))};
}

}  // namespace slimformer

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

    nb::class_<FloatNorm>(module, "Norm")
        .def(
            "__init__",
            [](FloatNorm* self, const Array<float, 1>& weight, const std::optional<Array<float, 1>>& bias, float epsilon,
               bool centred) {
                new (self) FloatNorm(make_norm(weight, bias, epsilon, centred));
            },
            nb::arg("weight"), nb::arg("bias").none(), nb::arg("epsilon"), nb::arg("centred") = true);

    nb::class_<Rotation>(module, "Rotation").def(nb::new_(&make_rotation), nb::arg("cosines"), nb::arg("sines"));

    nb::class_<BoundEncoder> encoder(module, "Encoder");
    encoder
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
                self.encoder->add_head_layer({std::move(matrix), activation_of(activation), norm.value_or(FloatNorm()), nullptr});
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
        .def_prop_ro("bytes", [](const BoundEncoder& self) { return self.encoder->bytes(); })
        .def_prop_ro("longest", [](const BoundEncoder& self) { return self.encoder->shape().longest; })
        .def("run", &run, nb::arg("ids"), nb::arg("types").none(), nb::arg("starts"), nb::arg("threads") = 1,
             nb::arg("isa") = "")
        .def("run_images", &run_images, nb::arg("patches"), nb::arg("threads") = 1, nb::arg("isa") = "");

    bind_panels(module);
    bind_decoder(module);
    bind_tasks(module, encoder);
}
