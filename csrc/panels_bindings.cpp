// Packed weights that Python keeps in the order of the kernels: products with them, and rows looked up in them.
#include "bindings.h"

namespace slimformer {

namespace {

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

}  // namespace

void bind_panels(nb::module_& module) {
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
}

}  // namespace slimformer
