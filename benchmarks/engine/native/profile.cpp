// Where the time of a forward goes: `profile INSTRUCTION_SET THREADS HIDDEN LAYERS HEADS INTERMEDIATE TOKENS FORWARDS`
// prints, for a ternary encoder on one text, milliseconds of each kind of kernel, over all threads, for one forward.
//
// The kernels are those of the engine with a clock around each. An activation is part of a product; what it costs is
// how much longer the product takes with it than without, both asked again after the one that counts.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "dispatch.h"
#include "random_matrix.h"

using namespace slimformer;

namespace {

const Kernels* timed = nullptr;
std::atomic<std::int64_t> rounding{0}, products{0}, activation_time{0}, norms{0}, attention{0};

using Clock = std::chrono::steady_clock;

template <class Work>
std::int64_t nanoseconds(const Work& work) {
    const auto begin = Clock::now();
    work();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

void quantize(const float* x, int rows, int inputs, QuantizedRows out, int first, int last) {
    rounding += nanoseconds([&] { timed->quantize(x, rows, inputs, out, first, last); });
}

void codes(const QuantizedRows& x, int rows, const CodeMatrix& w, Activation activation, float* out, int first, int last,
           std::uint8_t* scratch) {
    const auto run = [&](Activation each) {
        return nanoseconds([&] { timed->codes(x, rows, w, each, out, first, last, scratch); });
    };
    products += run(Activation::none);
    if (activation == Activation::none) return;
    const std::int64_t plain = run(Activation::none);
    activation_time += run(activation) - plain;
}

void norm(const float* x, const float* residual, int width, const Norm& norm, float* out, int first, int last) {
    norms += nanoseconds([&] { timed->norm(x, residual, width, norm, out, first, last); });
}

void attend(const Attention& given, int sequence, int head, std::uint8_t* scratch) {
    attention += nanoseconds([&] { timed->attend(given, sequence, head, scratch); });
}

FloatNorm plain_norm(int width) { return {std::vector<float>(width, 1.0f), std::vector<float>(width, 0.0f), 1e-12f}; }

}  // namespace

int main(int count, char** arguments) {
    if (count != 9) return 2;
    const char* name = arguments[1];
    int numbers[7];
    for (int i = 0; i < 7; i++) numbers[i] = std::atoi(arguments[i + 2]);
    const auto [threads, hidden, layers, heads, intermediate, tokens, forwards] = numbers;
    timed = find_kernels(name);
    if (timed == nullptr) return 3;
    Kernels kernels = *timed;
    kernels.quantize = quantize, kernels.codes = codes, kernels.norm = norm, kernels.attend = attend;

    std::mt19937 draw(0);
    std::normal_distribution<float> normal;
    constexpr int kWords = 1000;
    std::vector<float> words(static_cast<std::size_t>(kWords) * hidden), positions(static_cast<std::size_t>(tokens) * hidden);
    for (auto& each : words) each = normal(draw);
    Embeddings embeddings;
    embeddings.words.floats = words.data(), embeddings.words.rows = kWords, embeddings.words.columns = hidden;
    embeddings.positions.floats = positions.data(), embeddings.positions.rows = tokens, embeddings.positions.columns = hidden;
    embeddings.norm = plain_norm(hidden);
    Shape shape;
    shape.hidden = hidden, shape.heads = heads, shape.longest = tokens;
    Encoder encoder(shape, std::move(embeddings));
    for (int layer = 0; layer < layers; layer++) {
        Block block;
        block.qkv = random_matrix(3 * hidden, hidden, draw), block.output = random_matrix(hidden, hidden, draw);
        block.up = random_matrix(intermediate, hidden, draw), block.down = random_matrix(hidden, intermediate, draw);
        block.attention_norm = plain_norm(hidden), block.output_norm = plain_norm(hidden);
        encoder.add_block(std::move(block));
    }
    encoder.set_pooling(Pooling::first);

    Pool pool(threads);
    std::vector<std::int32_t> ids(tokens), starts = {0, tokens};
    for (auto& id : ids) id = static_cast<std::int32_t>(draw() % kWords);
    std::vector<float> out(hidden);
    const auto forward = [&](const Kernels& set) {
        encoder.run(set, pool, threads, {ids.data(), nullptr, nullptr, starts.data(), 1}, out.data());
    };
    forward(*timed);
    const std::int64_t whole = nanoseconds([&] { for (int i = 0; i < forwards; i++) forward(*timed); });
    forward(kernels);
    for (auto* each : {&rounding, &products, &activation_time, &norms, &attention}) *each = 0;
    for (int i = 0; i < forwards; i++) forward(kernels);
    const auto milliseconds = [&](std::int64_t total) { return 1e-6 * static_cast<double>(total) / forwards; };
    std::printf("{\"forward\": %.4f, \"products\": %.4f, \"attention\": %.4f, \"norms\": %.4f, \"activation\": %.4f, "
                "\"rounding\": %.4f}\n",
                milliseconds(whole), milliseconds(products), milliseconds(attention), milliseconds(norms),
                milliseconds(activation_time), milliseconds(rounding));
}
