// Decoders for Python.
#include <nanobind/stl/unique_ptr.h>

#include "bindings.h"
#include "decoder.h"

namespace slimformer {

namespace {

// A decoder, and the array that it looks rows up in, which Python must not forget before it.
struct BoundDecoder {
    std::unique_ptr<Decoder> decoder;
    nb::object words;
};

Answer run(const BoundDecoder& bound, const Array<std::int32_t, 1>& ids, const Array<std::int32_t, 1>& starts,
           const std::vector<Cache*>& caches, bool all, const std::optional<Array<std::int32_t, 1>>& neurons, const Matrix* head,
           int threads, const std::string& isa) {
    need(starts.size() >= 1 && starts.size() < 1u << 20, "where each sequence begins, and where the last one ends");
    const int sequences = static_cast<int>(starts.size()) - 1;
    need(static_cast<std::size_t>(starts.data()[sequences]) == ids.size(), "sequences that end where the tokens do");
    need(caches.size() == static_cast<std::size_t>(sequences), "a cache for each sequence");
    for (const Cache* cache : caches) need(cache != nullptr, "a cache for each sequence");
    need(!neurons || neurons->size() == bound.decoder->blocks().size(), "a number of neurons for each block");
    const Kernels& kernels = kernels_of(isa);
    const NewTokens input = {ids.data(), starts.data(), sequences, caches.data(), all, neurons ? neurons->data() : nullptr, head};
    Answer out = make_answer(input.answers(), head == nullptr ? bound.decoder->vocabulary() : head->outputs());
    {
        const WithoutLock unlocked;
        bound.decoder->run(kernels, pool(), threads, input, out.data());
    }
    return out;
}

// The rows of a head for some tokens.
std::shared_ptr<Matrix> part_of_head(const BoundDecoder& bound, const Array<std::int32_t, 1>& tokens) {
    const SharedMatrix& head = bound.decoder->head();
    need(head != nullptr && tokens.size() < kMost, "tokens of the vocabulary of a decoder with a head");
    const WithoutLock unlocked;
    return head->select(tokens.data(), static_cast<int>(tokens.size()));
}

}  // namespace

void bind_decoder(nb::module_& module) {
    nb::class_<Cache>(module, "Cache")
        .def_prop_ro("length", &Cache::length)
        .def_prop_ro("bytes", &Cache::bytes)
        .def("crop", &Cache::crop, nb::arg("length"));

    nb::class_<BoundDecoder>(module, "Decoder")
        .def(
            "__init__",
            [](BoundDecoder* self, int hidden, int heads, int head_width, int longest, const std::string& activation,
               nb::object words, float scale) {
                const Shape shape = {hidden, heads, longest, activation_of(activation), true, true, head_width};
                new (self) BoundDecoder{std::make_unique<Decoder>(shape, table_of(words), scale), words};
            },
            nb::arg("hidden"), nb::arg("heads"), nb::arg("head_width"), nb::arg("longest"), nb::arg("activation"),
            nb::arg("words"), nb::arg("scale") = 1.0f)
        .def(
            "add_block",
            [](BoundDecoder& self, std::shared_ptr<Matrix> qkv, std::shared_ptr<Matrix> output, std::shared_ptr<Matrix> up,
               std::shared_ptr<Matrix> down, const FloatNorm& attention_norm, const FloatNorm& output_norm,
               std::shared_ptr<Rotation> rotation, const std::optional<FloatNorm>& query_norm,
               const std::optional<FloatNorm>& key_norm) {
                self.decoder->add_block({std::move(qkv), std::move(output), std::move(up), std::move(down), attention_norm,
                                         output_norm, 0, std::move(rotation)},
                                        query_norm.value_or(FloatNorm()), key_norm.value_or(FloatNorm()));
            },
            nb::arg("qkv"), nb::arg("output"), nb::arg("up"), nb::arg("down"), nb::arg("attention_norm"),
            nb::arg("output_norm"), nb::arg("rotation"), nb::arg("query_norm").none(), nb::arg("key_norm").none())
        .def(
            "set_final_norm",
            [](BoundDecoder& self, const FloatNorm& norm) { self.decoder->set_final_norm(norm); }, nb::arg("norm"))
        .def(
            "set_head",
            [](BoundDecoder& self, std::shared_ptr<Matrix> matrix) { self.decoder->set_head(std::move(matrix)); },
            nb::arg("matrix"))
        .def_prop_ro("longest", [](const BoundDecoder& self) { return self.decoder->shape().longest; })
        .def_prop_ro("vocabulary", [](const BoundDecoder& self) { return self.decoder->vocabulary(); })
        .def_prop_ro("neurons",
                     [](const BoundDecoder& self) {
                         std::vector<int> neurons;
                         for (const Block& block : self.decoder->blocks()) neurons.push_back(block.down->inputs());
                         return neurons;
                     })
        .def("part_of_head", &part_of_head, nb::arg("tokens"))
        .def("cache", [](const BoundDecoder& self) { return self.decoder->make_cache(); })
        .def("run", &run, nb::arg("ids"), nb::arg("starts"), nb::arg("caches"), nb::arg("all") = false,
             nb::arg("neurons") = nb::none(), nb::arg("head") = nb::none(), nb::arg("threads") = 1, nb::arg("isa") = "");
}

}  // namespace slimformer
