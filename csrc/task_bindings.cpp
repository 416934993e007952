// Tasks on an encoder that they share: masks, heads, and forwards of sequences that belong to several.
#include "bindings.h"

namespace slimformer {

namespace {

// [outputs][inputs], 0 where a weight is dropped
std::shared_ptr<Mask> make_mask(const Array<std::uint8_t, 2>& kept) {
    need(kept.shape(0) <= 1u << 24 && kept.shape(1) <= 1u << 16, "a mask of this size");
    return std::make_shared<Mask>(static_cast<int>(kept.shape(0)), static_cast<int>(kept.shape(1)), kept.data());
}

// activation(x (W ⊙ M)^T + bias) for rows of several tasks, of which each begins where `starts` says.
Answer multiply_tasks(const Matrix& matrix, const Array<float, 2>& x, const Array<std::int32_t, 1>& starts,
                      const std::vector<std::shared_ptr<Mask>>& masks, const std::string& activation, int threads,
                      const std::string& isa) {
    need(static_cast<int>(x.shape(1)) == matrix.inputs(), "inputs of another width than the matrix");
    need(x.shape(0) < kMost, "too many rows at once");
    need(starts.size() == masks.size() + 1 && starts.data()[0] == 0 &&
             starts.data()[masks.size()] == static_cast<std::int32_t>(x.shape(0)),
         "a first row for each task, and as many as there are in the end");
    std::vector<MaskedRows> parts;
    for (std::size_t i = 0; i < masks.size(); i++) {
        need(starts.data()[i] <= starts.data()[i + 1], "tasks one after the other");
        add_rows(parts, starts.data()[i], starts.data()[i + 1], masks[i].get());
    }
    const Kernels& kernels = kernels_of(isa);
    const Activation chosen = activation_of(activation);
    Answer out = make_answer(x.shape(0), matrix.outputs());
    {
        const WithoutLock unlocked;
        multiply_masked(kernels, pool(), threads, matrix, parts, x.data(), chosen, out.data());
    }
    return out;
}

// The answers of each sequence: a row, or one for each of its tokens. All lie in one piece of memory.
std::vector<Answer> answer(const Encoder& encoder, const Input& input, const std::vector<std::shared_ptr<Task>>& tasks,
                           int threads, const std::string& isa) {
    need(tasks.size() == static_cast<std::size_t>(input.sequences), "a task for each sequence");
    check_starts(input.starts, input.sequences, encoder.shape().longest);
    const Kernels& kernels = kernels_of(isa);
    std::vector<const Task*> each;
    std::vector<std::size_t> rows;
    std::size_t count = 0;
    for (int i = 0; i < input.sequences; i++) {
        need(tasks[i] != nullptr, "a task for each sequence");
        const Head& head = tasks[i]->head;
        each.push_back(tasks[i].get());
        rows.push_back(head.pooling == Pooling::tokens ? input.starts[i + 1] - input.starts[i] : 1);
        count += rows.back() * head.outputs(tasks[i]->hidden);
    }
    const nb::capsule owner = new_memory<float>(count);
    float* out = static_cast<float*>(owner.data());
    {
        const WithoutLock unlocked;
        encoder.run(kernels, pool(), threads, input, each.data(), out);
    }
    std::vector<Answer> answers;
    for (int i = 0; i < input.sequences; i++) {
        const std::size_t columns = each[i]->head.outputs(each[i]->hidden);
        answers.push_back(Answer(out, {rows[i], columns}, owner));
        out += rows[i] * columns;
    }
    return answers;
}

}  // namespace

void bind_tasks(nb::module_& module, nb::class_<BoundEncoder>& encoder) {
    nb::class_<Mask>(module, "Mask").def(nb::new_(&make_mask), nb::arg("kept")).def_prop_ro("bytes", &Mask::bytes);
    module.def("multiply_tasks", &multiply_tasks, nb::arg("matrix"), nb::arg("x"), nb::arg("starts"), nb::arg("masks"),
               nb::arg("activation") = "none", nb::arg("threads") = 1, nb::arg("isa") = "");

    nb::class_<Task>(module, "Task")
        .def(
            "__init__",
            [](Task* self, int hidden) {
                need(hidden >= 1 && hidden < kMost, "a task without hidden states");
                new (self) Task{hidden, {}, {}};
            },
            nb::arg("hidden"))
        .def(
            "add_block",
            [](Task& self, std::shared_ptr<Mask> qkv, std::shared_ptr<Mask> output, std::shared_ptr<Mask> up,
               std::shared_ptr<Mask> down) {
                self.blocks.push_back({{std::move(qkv), std::move(output), std::move(up), std::move(down)}});
            },
            nb::arg("qkv").none(), nb::arg("output").none(), nb::arg("up").none(), nb::arg("down").none())
        .def(
            "add_head_layer",
            [](Task& self, std::shared_ptr<Matrix> matrix, const std::string& activation, const std::optional<FloatNorm>& norm,
               std::shared_ptr<Mask> mask) {
                self.head.add({std::move(matrix), activation_of(activation), norm.value_or(FloatNorm()), std::move(mask)},
                              self.hidden);
            },
            nb::arg("matrix"), nb::arg("activation"), nb::arg("norm").none(), nb::arg("mask").none())
        .def(
            "pool",
            [](Task& self, const std::string& name) {
                self.head.pooling = named<Pooling>("pooling", name, {"tokens", "first", "mean"});
            },
            nb::arg("name"));

    encoder
        .def(
            "run_tasks",
            [](const BoundEncoder& bound, const Array<std::int32_t, 1>& ids, const std::optional<Array<std::int32_t, 1>>& types,
               const Array<std::int32_t, 1>& starts, const std::vector<std::shared_ptr<Task>>& tasks, int threads,
               const std::string& isa) {
                return answer(*bound.encoder, input_of(*bound.encoder, ids, types, starts), tasks, threads, isa);
            },
            nb::arg("ids"), nb::arg("types").none(), nb::arg("starts"), nb::arg("tasks"), nb::arg("threads") = 1,
            nb::arg("isa") = "")
        .def(
            "run_images_of_tasks",
            [](const BoundEncoder& bound, const Array<float, 3>& patches, const std::vector<std::shared_ptr<Task>>& tasks,
               int threads, const std::string& isa) {
                std::vector<std::int32_t> starts;
                const Input input = images_of(*bound.encoder, patches, starts);
                return answer(*bound.encoder, input, tasks, threads, isa);
            },
            nb::arg("patches"), nb::arg("tasks"), nb::arg("threads") = 1, nb::arg("isa") = "");
}

}  // namespace slimformer
