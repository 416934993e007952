// Counts what forwards allocate once they are warm, which must be nothing.
//
//     allocations
//
// Encoders and decoders of every kind of weights answer their largest batch, then others, in one thread and in two. A
// line is printed for each, with a checksum of its answers. It ends with 1 where a warm forward has allocated, or has
// answered otherwise than a model that was made for that batch alone.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../decoder.h"
#include "../dispatch.h"
#include "../encoder.h"

namespace {

std::atomic<long> allocations{0};

}  // namespace

// Where the C library lets a program have a `malloc` of its own, what does not come by `new` is counted too.
#ifdef __GLIBC__
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t line, std::size_t size);

void* malloc(std::size_t size) noexcept { return allocations++, __libc_malloc(size); }
void* calloc(std::size_t count, std::size_t size) noexcept { return allocations++, __libc_calloc(count, size); }
void* realloc(void* memory, std::size_t size) noexcept { return allocations++, __libc_realloc(memory, size); }
void* aligned_alloc(std::size_t line, std::size_t size) noexcept { return allocations++, __libc_memalign(line, size); }
}
#endif

// Compilers that see into one of them and not into the other take them for a pair that does not fit.
#define APART __attribute__((noinline))
APART void* operator new(std::size_t size) {
    allocations++;
    if (void* memory = std::malloc(std::max<std::size_t>(1, size))) return memory;
    throw std::bad_alloc();
}
APART void* operator new(std::size_t size, std::align_val_t line) {
    const std::size_t unit = static_cast<std::size_t>(line);
    allocations++;
    if (void* memory = std::aligned_alloc(unit, slimformer::padded(std::max<std::size_t>(1, size), unit))) return memory;
    throw std::bad_alloc();
}
APART void operator delete(void* memory) noexcept { std::free(memory); }
APART void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
APART void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }

namespace {

using namespace slimformer;

enum class Kind { ternary, int8, float32, bfloat16 };
constexpr Kind kKinds[] = {Kind::ternary, Kind::int8, Kind::float32, Kind::bfloat16};
const char* const kNames[] = {"ternary", "int8", "float32", "bfloat16"};

constexpr int kHidden = 48, kHeads = 3, kNeurons = 80, kLongest = 40, kWords = 50, kPatch = 24;

// The same numbers for every model of a kind.
class Draw {
   public:
    int below(int count) { return static_cast<int>(engine_() % static_cast<unsigned>(count)); }

    std::vector<float> floats(std::size_t count) {
        std::vector<float> result(count);
        for (float& each : result) each = static_cast<float>(below(2001) - 1000) / 1000.0f;
        return result;
    }

    SharedMatrix matrix(Kind kind, int outputs, int inputs) {
        const std::vector<float> bias = floats(outputs);
        if (kind == Kind::ternary || kind == Kind::int8) return codes(kind, outputs, inputs, bias.data());
        const auto made = std::make_shared<Matrix>(outputs, inputs, kind == Kind::bfloat16);
        const std::vector<float> weights = floats(static_cast<std::size_t>(outputs) * inputs);
        if (kind == Kind::float32) {
            made->set_rows(0, weights.data(), outputs, bias.data());
        } else {
            std::vector<std::uint16_t> upper(weights.size());
            for (std::size_t i = 0; i < upper.size(); i++) {
                std::uint32_t bits;
                std::memcpy(&bits, &weights[i], sizeof bits);
                upper[i] = static_cast<std::uint16_t>(bits >> 16);
            }
            made->set_rows(0, upper.data(), outputs, bias.data());
        }
        return made;
    }

    FloatNorm norm(int width) { return {floats(width), floats(width), 1e-5f, true}; }

    std::shared_ptr<const Rotation> rotation(int width) {
        const std::size_t angles = static_cast<std::size_t>(kLongest) * (width / 2);
        return std::make_shared<Rotation>(Rotation{floats(angles), floats(angles)});
    }

    SharedMask mask(const Matrix& matrix) {
        std::vector<std::uint8_t> kept(static_cast<std::size_t>(matrix.outputs()) * matrix.inputs());
        for (std::uint8_t& each : kept) each = below(20) > 0;
        return std::make_shared<Mask>(matrix.outputs(), matrix.inputs(), kept.data());
    }

   private:
    SharedMatrix codes(Kind kind, int outputs, int inputs, const float* bias) {
        const bool ternary = kind == Kind::ternary;
        const Layout layout = ternary ? Layout{4, 4, -2, 1, 1, -1, 1} : Layout{256, 1, -128, 1, 1, -128, 127};
        PackedRows rows = {nullptr, nullptr, outputs, inputs, inputs, layout};
        std::vector<std::uint8_t> bytes(outputs * rows.row_bytes());
        for (std::uint8_t& byte : bytes)
            for (int digit = 0, unit = 1; digit < layout.digits; digit++, unit *= layout.base)
                byte = static_cast<std::uint8_t>(byte + (ternary ? 1 + below(3) : below(256)) * unit);
        const std::vector<float> scales = floats(outputs);
        rows.codes = bytes.data(), rows.scales = scales.data();
        const auto made = std::make_shared<Matrix>(outputs, inputs, layout, inputs);
        made->set_rows(0, rows, bias);
        return made;
    }

    std::minstd_rand engine_{1};
};

Block draw_block(Draw& draw, Kind kind, const Shape& shape, int qkv) {
    Block block;
    block.qkv = draw.matrix(kind, qkv, kHidden);
    block.output = draw.matrix(kind, kHidden, kHidden);
    block.up = draw.matrix(kind, shape.gated ? 2 * kNeurons : kNeurons, kHidden);
    block.down = draw.matrix(kind, kHidden, kNeurons);
    block.attention_norm = draw.norm(kHidden), block.output_norm = draw.norm(kHidden);
    if (shape.pre_norm) block.rotation = draw.rotation(shape.width());
    return block;
}

// Some sequences, with a task for each where there are tasks.
struct Batch {
    std::vector<int> lengths;
    std::vector<int> tasks;
};

// Tokens, types and places of sequences; they follow from their lengths.
struct Tokens {
    std::vector<std::int32_t> ids, types, starts = {0};

    explicit Tokens(const std::vector<int>& lengths) {
        for (const int length : lengths) starts.push_back(starts.back() + length);
        for (int i = 0; i < starts.back(); i++) ids.push_back(i * 7 % kWords), types.push_back(i % 2);
    }
    int sequences() const { return static_cast<int>(starts.size()) - 1; }
};

// An encoder of one of three designs, and what it reads.
enum class Design { after, before, images };  // norms after the sub-layers, before them, and a model of images

class EncoderModel {
   public:
    EncoderModel(Design design, Kind kind) : images_(design == Design::images) {
        const bool pre_norm = design == Design::before;
        const int narrow = design == Design::after ? kPatch : kHidden;
        const Shape shape = {kHidden, kHeads, kLongest, Activation::gelu, pre_norm || images_, pre_norm};
        words_ = draw_.floats(kWords * kHidden), positions_ = draw_.floats((kLongest + 2) * kHidden), types_ = draw_.floats(2 * kHidden);
        Embeddings from;
        from.images = images_;
        from.words = {{}, words_.data(), nullptr, images_ ? 1 : kWords, narrow};
        if (!pre_norm) from.positions = {{}, positions_.data(), nullptr, kLongest + 2, narrow};
        if (design == Design::after) from.types = {{}, types_.data(), nullptr, 2, narrow}, from.position_offset = 2;
        if (design != Design::before)
            from.projection = draw_.matrix(kind == Kind::bfloat16 ? kind : Kind::float32, kHidden, kPatch);
        from.norm = draw_.norm(narrow);
        encoder_ = std::make_unique<Encoder>(shape, std::move(from));
        if (design == Design::after) encoder_->set_position_bias(draw_.floats(kHeads * (2 * kLongest - 1)).data());
        std::vector<Block> blocks;
        for (int i = 0; i < 2; i++) {
            blocks.push_back(draw_block(draw_, kind, shape, 3 * kHidden));
            blocks.back().window = pre_norm && i == 1 ? 5 : 0;
            encoder_->add_block(blocks.back());
        }
        if (shape.pre_norm) encoder_->set_final_norm(draw_.norm(kHidden));
        encoder_->set_pooling(pre_norm ? Pooling::tokens : images_ ? Pooling::first : Pooling::mean);
        encoder_->add_head_layer({draw_.matrix(kind, kHidden, kHidden), Activation::tanh, draw_.norm(kHidden), nullptr});
        encoder_->add_head_layer({draw_.matrix(Kind::float32, 3, kHidden), Activation::none, {}, nullptr});
        for (const Pooling pooling : {Pooling::first, Pooling::tokens, Pooling::mean}) add_task(blocks, kind, pooling);
    }

    // A batch with memory for its answers.
    struct Request {
        Tokens tokens;
        std::vector<float> patches;
        std::vector<const Task*> tasks;
        std::vector<float> out;
    };

    Request request(const Batch& batch) const {
        Request made = {Tokens(batch.lengths), {}, {}, {}};
        const std::size_t count = made.tokens.ids.size();
        for (const int number : batch.tasks) made.tasks.push_back(&tasks_[number]);
        made.patches.assign(images_ ? count * kPatch : 0, 0.3f);
        made.out.assign(count * kHidden, 77.0f);
        return made;
    }

    void run(Pool& pool, int threads, Request& request) const {
        const Tokens& tokens = request.tokens;
        const bool typed = encoder_->embeddings().types.rows > 0;
        const Input input = {tokens.ids.data(), typed ? tokens.types.data() : nullptr, request.patches.data(), tokens.starts.data(), tokens.sequences()};
        if (request.tasks.empty())
            encoder_->run(*find_kernels(nullptr), pool, threads, input, request.out.data());
        else
            encoder_->run(*find_kernels(nullptr), pool, threads, input, request.tasks.data(), request.out.data());
    }

   private:
    // The first task masks all matrices, the second one some, the third one none.
    void add_task(const std::vector<Block>& blocks, Kind kind, Pooling pooling) {
        Task task = {kHidden, {}, {}};
        const std::size_t number = tasks_.size();
        for (const Block& block : blocks) {
            task.blocks.emplace_back();
            for (int part = 0; part < kBlockMatrices && number < 2; part++)
                if (number == 0 || part == 1) task.blocks.back().of[part] = draw_.mask(block.matrix(static_cast<Part>(part)));
        }
        const SharedMatrix dense = draw_.matrix(kind, kHidden, kHidden), last = draw_.matrix(Kind::float32, 2 + static_cast<int>(number), kHidden);
        task.head.add({dense, Activation::relu, {}, number == 1 ? draw_.mask(*dense) : nullptr}, kHidden);
        task.head.add({last, Activation::none, {}, number == 0 ? draw_.mask(*last) : nullptr}, kHidden);
        task.head.pooling = pooling;
        tasks_.push_back(std::move(task));
    }

    const bool images_;
    Draw draw_;
    std::vector<float> words_, positions_, types_;
    std::unique_ptr<Encoder> encoder_;
    std::vector<Task> tasks_;
};

class DecoderModel {
   public:
    explicit DecoderModel(Kind kind) : words_(draw_.floats(kWords * kHidden)) {
        constexpr int width = kHidden / kHeads;
        const Shape shape = {kHidden, kHeads, kLongest, Activation::silu, true, true, width};
        decoder_ = std::make_unique<Decoder>(shape, Table{{}, words_.data(), nullptr, kWords, kHidden}, 1.0f);
        for (int i = 0; i < 2; i++)
            decoder_->add_block(draw_block(draw_, kind, shape, kHidden + 2 * width), draw_.norm(width), draw_.norm(width));
        decoder_->set_final_norm(draw_.norm(kHidden));
        decoder_->set_head(draw_.matrix(kind, kWords, kHidden));
    }

    // A batch with memory for its answers, and what is kept of each sequence.
    struct Request {
        Tokens first, step;
        std::vector<std::unique_ptr<Cache>> owned;
        std::vector<Cache*> caches;
        std::vector<float> out;
    };

    Request request(const Batch& batch) const {
        std::vector<int> lengths = batch.lengths;
        for (int& length : lengths) length = std::max(1, length - kSteps);
        Request made = {Tokens(lengths), Tokens(std::vector<int>(lengths.size(), 1)), {}, {}, {}};
        for (std::size_t i = 0; i < lengths.size(); i++) {
            made.owned.push_back(decoder_->make_cache());
            made.caches.push_back(made.owned.back().get());
        }
        made.out.assign((made.first.ids.size() + kSteps * lengths.size()) * kWords, 77.0f);
        return made;
    }

    // Logits of all tokens of a batch but the last ones, and then of these, one at a time.
    void run(Pool& pool, int threads, Request& request) const {
        for (Cache* const cache : request.caches) cache->crop(0);
        float* to = request.out.data();
        for (int i = 0; i <= kSteps; i++) {
            const Tokens& next = i == 0 ? request.first : request.step;
            const NewTokens input = {next.ids.data(), next.starts.data(), next.sequences(), request.caches.data(), i == 0};
            decoder_->run(*find_kernels(nullptr), pool, threads, input, to);
            to += static_cast<std::size_t>(input.answers()) * kWords;
        }
    }

   private:
    static constexpr int kSteps = 5;

    Draw draw_;
    std::vector<float> words_;
    std::unique_ptr<Decoder> decoder_;
};

[[noreturn]] void fail(const std::string& name, const char* what, long count) {
    std::printf("%s: %s (%ld)\n", name.c_str(), what, count);
    std::exit(1);
}

// FNV-1a over the bits of answers, which hold no NaN.
std::uint64_t add_to(std::uint64_t sum, const std::vector<float>& answer) {
    for (const float each : answer) {
        if (std::isnan(each)) fail("answers", "NaN", 0);
        std::uint32_t bits;
        std::memcpy(&bits, &each, sizeof bits);
        sum = (sum ^ bits) * 1099511628211u;
    }
    return sum;
}

// All batches of a model several times over, each against what is expected of it.
template <class Model>
void answer(const std::string& name, const Model& model, Pool& pool, std::vector<typename Model::Request>& requests,
            const std::vector<std::vector<float>>& expected, int rounds) {
    for (int round = 0; round < rounds; round++)
        for (std::size_t i = 0; i < requests.size(); i++) {
            std::vector<float>& out = requests[i].out;
            std::fill(out.begin(), out.end(), 77.0f);
            model.run(pool, 1 + round % 2, requests[i]);
            if (std::memcmp(out.data(), expected[i].data(), sizeof(float) * out.size()) != 0)
                fail(name, "a warm model answers otherwise than a cold one", static_cast<long>(i));
        }
}

// Answers of a model that is warm, against those of models that `make` makes for each batch.
template <class Make>
void check(const std::string& name, const std::vector<Batch>& batches, const Make& make) {
    Pool pool(2);
    std::vector<std::vector<float>> expected;
    std::uint64_t sum = 14695981039346656037u;
    for (const Batch& batch : batches) {
        const auto model = make();
        auto request = model->request(batch);
        const long before = allocations;
        model->run(pool, 1, request);
        if (allocations == before) fail(name, "a cold forward allocates nothing, so nothing is counted", before);
        sum = add_to(sum, request.out);
        expected.push_back(std::move(request.out));
    }
    const auto model = make();
    std::vector<decltype(model->request(batches[0]))> requests[2];
    for (const Batch& batch : batches)
        for (auto& each : requests) each.push_back(model->request(batch));
    answer(name, *model, pool, requests[0], expected, 2);
    long before = allocations;
    answer(name, *model, pool, requests[0], expected, 4);
    if (allocations != before) fail(name, "warm forwards allocate", allocations - before);

    // Two callers at once: memory for the second one has to be made, and then neither needs any more.
    constexpr int rounds = 60;
    std::atomic<bool> ready{false};
    std::thread other([&] {
        ready = true;
        answer(name, *model, pool, requests[1], expected, rounds);
    });
    while (!ready) std::this_thread::yield();
    before = allocations;
    answer(name, *model, pool, requests[0], expected, rounds);
    other.join();
    const long forwards = 2 * rounds * static_cast<long>(batches.size());
    if (allocations - before >= forwards) fail(name, "two callers at once go on allocating", allocations - before);
    std::printf("%s: nothing allocated, checksum %016llx\n", name.c_str(), static_cast<unsigned long long>(sum));
}

}  // namespace

int main() {
    // The largest one first.
    const std::vector<Batch> texts = {{{40, 40, 40, 40, 40, 40, 40, 40, 40}, {}}, {{1}, {}}, {{16}, {}}, {{7, 40, 1, 13}, {}},
                                      {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {}},          {{40, 39}, {}}};
    const std::vector<Batch> images = {{{40, 40, 40, 40}, {}}, {{40}, {}}, {{40, 40, 40}, {}}};
    // A batch of tasks that take turns comes first, then batches in which they follow each other.
    std::vector<Batch> mixed = {{{40, 40, 40, 40, 40, 40, 40, 40, 40}, {0, 1, 2, 0, 1, 2, 0, 1, 2}},
                                {{40, 40, 40, 40, 40, 40, 40, 40, 40}, {0, 0, 0, 0, 1, 1, 1, 1, 1}},
                                {{7, 40, 1, 13}, {1, 1, 1, 1}},
                                {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {2, 1, 0, 2, 1, 0, 2, 1, 0}},
                                {{16}, {2}}};
    for (const Kind kind : kKinds) {
        const std::string name = kNames[static_cast<int>(kind)];
        check(name + ", norms after", texts, [&] { return std::make_unique<EncoderModel>(Design::after, kind); });
        check(name + ", norms before", texts, [&] { return std::make_unique<EncoderModel>(Design::before, kind); });
        check(name + ", images", images, [&] { return std::make_unique<EncoderModel>(Design::images, kind); });
        check(name + ", tasks", mixed, [&] { return std::make_unique<EncoderModel>(Design::after, kind); });
        check(name + ", decoder", texts, [&] { return std::make_unique<DecoderModel>(kind); });
    }
    return 0;
}
