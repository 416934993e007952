// A product with a ternary matrix by one thread, with and without the rounding of the activations before it.
#include <algorithm>

#include "dispatch.h"
#include "random_matrix.h"

using namespace slimformer;

namespace {

struct Product {
    const Kernels* kernels;
    int rows;
    std::shared_ptr<Matrix> matrix;
    std::vector<float> x;
    RoundedRows rounded;
    std::vector<float> out;
    Memory<std::uint8_t> scratch;
};

}  // namespace

extern "C" {

// Null where the machine has no such instruction set.
Product* product_new(const char* instruction_set, int rows, int inputs, int outputs) {
    const Kernels* kernels = find_kernels(instruction_set);
    if (kernels == nullptr) return nullptr;
    std::mt19937 draw(0);
    auto* product = new Product{kernels, rows, random_matrix(outputs, inputs, draw), {}, {}, {}, {}};
    std::normal_distribution<float> normal;
    product->x.resize(static_cast<std::size_t>(rows) * inputs);
    std::generate(product->x.begin(), product->x.end(), [&] { return normal(draw); });
    product->rounded.hold(rows, inputs);
    kernels->quantize(product->x.data(), rows, inputs, product->rounded.view(), 0, parts_of(rows, kRows));
    product->out.resize(static_cast<std::size_t>(rows) * outputs);
    product->scratch.resize(product->matrix->scratch());
    return product;
}

void product_run(Product* product, int times, bool rounding) {
    Team alone(1);
    const QuantizedRows rounded = product->rounded.view();
    for (int time = 0; time < times; time++) {
        if (rounding)
            product->kernels->quantize(product->x.data(), product->rows, product->matrix->inputs(), rounded, 0,
                                       parts_of(product->rows, kRows));
        product->matrix->product(*product->kernels, alone, nullptr, rounded, product->rows, Activation::none,
                                 product->out.data(), product->scratch.data());
    }
}

void product_delete(Product* product) { delete product; }

}
