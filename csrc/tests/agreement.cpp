// Compares the kernels of all instruction sets with the portable ones, bit by bit, on random shapes and numbers.
//
//     agreement SEED CASES [NAME…]
//
// takes every set that this machine has, or those of the names, whether it has them or not (an emulation does not show
// in what the processor says). It prints a line for each kernel with a checksum of the portable answers, which is the
// same on every machine, and ends with 1 at the first difference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../dispatch.h"
#include "../masks.h"

using namespace slimformer;

namespace {

std::vector<const Kernels*> compared;
const Kernels* portable;

// Numbers that are the same with every standard library, whose distributions are not.
class Draw {
   public:
    explicit Draw(std::uint64_t seed) : engine_(seed) {}

    int between(int least, int most) {
        return least + static_cast<int>(engine_() % static_cast<std::uint64_t>(most - least + 1));
    }
    bool one_in(int count) { return between(1, count) == 1; }
    // From -1 to 1.
    float fraction() { return static_cast<float>(between(-(1 << 23), 1 << 23)) / static_cast<float>(1 << 23); }

    // Floats of one size; in some draws with an odd number or two among them, in some others with nothing else.
    std::vector<float> floats(std::size_t count) {
        if (one_in(10)) return odd_numbers(count);
        const int size = one_in(4) ? between(-140, 120) : between(-10, 10);
        const bool has_odd = one_in(3);
        std::vector<float> result(count);
        for (float& each : result)
            each = has_odd && one_in(static_cast<int>(count)) ? odd_number() : std::ldexp(fraction(), size);
        return result;
    }
    std::vector<float> odd_numbers(std::size_t count) {
        std::vector<float> result(count);
        for (float& each : result) each = odd_number();
        return result;
    }

   private:
    float odd_number() {
        constexpr float infinity = std::numeric_limits<float>::infinity();
        const float all[] = {0.0f,  -0.0f,  infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 1e-45f, 1e-38f,
                             3e38f, -3e38f, 0.5f,     1e-6f,     88.0f,                                   -87.3f, 4.0f};
        return all[between(0, static_cast<int>(std::size(all)) - 1)];
    }

    std::mt19937_64 engine_;
};

// FNV-1a over the bits of all answers; every NaN counts as the same one, since processors give it different bits.
class Checksum {
   public:
    void add(std::uint32_t bits) { state_ = (state_ ^ bits) * 1099511628211u; }
    unsigned long long value() const { return state_; }

   private:
    std::uint64_t state_ = 14695981039346656037u;
};

std::uint32_t bits_of(float x) {
    if (std::isnan(x)) return 0x7FC00000u;
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
std::uint32_t bits_of(std::int32_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t bits_of(std::int8_t x) { return static_cast<std::uint8_t>(x); }

template <class Number>
void expect_same(const std::vector<Number>& answer, const std::vector<Number>& expected, const char* set,
                 const char* what, const std::string& shape) {
    for (std::size_t i = 0; i < expected.size(); i++) {
        if (bits_of(answer[i]) == bits_of(expected[i])) continue;
        std::printf("%s: %s differ at %zu (%s): %.9g, but %.9g by the portable one\n", set, what, i, shape.c_str(),
                    static_cast<double>(answer[i]), static_cast<double>(expected[i]));
        std::exit(1);
    }
}

// Runs `answer` with each set and compares what it returns; the place behind each array is part of it.
template <class Answer>
void compare(const char* what, const std::string& shape, Checksum& checksum, const Answer& answer) {
    const auto expected = answer(*portable);
    for (const auto each : expected) checksum.add(bits_of(each));
    for (const Kernels* set : compared) expect_same(answer(*set), expected, set->name, what, shape);
}

std::string text(std::initializer_list<int> sizes) {
    std::string result;
    for (int size : sizes) result += (result.empty() ? "" : " x ") + std::to_string(size);
    return result;
}

int tiles_of(int rows) { return (rows + kRows - 1) / kRows; }

// Room behind an array, which must stay as it is.
constexpr std::size_t kBehind = 32;

struct Rows {
    std::vector<std::int8_t> values;
    std::vector<float> scales;
    std::vector<std::int32_t> sums;

    Rows(int rows, int inputs)
        : values(rows * padded(inputs, kInputs) + kBehind, 77), scales(rows + kBehind, 77), sums(rows + kBehind, 77) {}
    QuantizedRows view() { return {values.data(), scales.data(), sums.data()}; }
};

Rows quantized(const Kernels& kernels, const std::vector<float>& x, int rows, int inputs) {
    Rows result(rows, inputs);
    kernels.quantize(x.data(), rows, inputs, result.view(), 0, tiles_of(rows));
    return result;
}

int draw_inputs(Draw& draw) { return draw.one_in(30) ? draw.between(600, 5000) : draw.between(1, 600); }

void check_quantize(Draw& draw, Checksum& checksum) {
    const int rows = draw.between(1, 40), inputs = draw_inputs(draw);
    const std::vector<float> x = draw.floats(static_cast<std::size_t>(rows) * inputs);
    const std::string shape = text({rows, inputs});
    compare("bytes of rows", shape, checksum, [&](const Kernels& set) { return quantized(set, x, rows, inputs).values; });
    compare("scales of rows", shape, checksum, [&](const Kernels& set) { return quantized(set, x, rows, inputs).scales; });
    compare("sums of rows", shape, checksum, [&](const Kernels& set) { return quantized(set, x, rows, inputs).sums; });
}

// What a mask keeps, from gaps of more than a byte between what it drops to all or nothing.
std::vector<std::uint8_t> draw_kept(Draw& draw, int outputs, int inputs) {
    const int dropped = draw.one_in(2) ? 20 : draw.between(1, 300);
    const bool whole = draw.one_in(10), none = !whole && draw.one_in(10);
    std::vector<std::uint8_t> kept(static_cast<std::size_t>(outputs) * inputs);
    for (std::uint8_t& each : kept) each = whole || (!none && !draw.one_in(dropped));
    if (draw.one_in(3))  // some outputs list what they keep
        for (int i = 0; i < outputs; i++)
            for (int k = 0; k < inputs && i % 3 == 0; k++) kept[i * inputs + k] = !kept[i * inputs + k];
    return kept;
}

void check_codes(Draw& draw, Checksum& checksum) {
    const int rows = draw.between(1, 40), inputs = draw_inputs(draw), outputs = draw.between(1, 70);
    const int panels = (outputs + kColumns - 1) / kColumns;
    const auto activation = static_cast<Activation>(draw.between(0, 5));
    const std::size_t length = padded(inputs, kInputs), columns = padded(outputs, kColumns);
    const bool extreme = draw.one_in(10);  // every sum as far from 0 as it can be
    const bool zeros = !extreme && draw.one_in(10);  // so that the bias is what is activated
    std::vector<float> x = draw.floats(static_cast<std::size_t>(rows) * inputs);
    if (extreme || zeros) x.assign(x.size(), zeros ? 0.0f : draw.fraction());
    // Largest digit, bits, stride and lowest code of the formats there are.
    const int kinds[][4] = {{2, 2, 1, -1}, {1, 2, 2, -1}, {3, 2, 2, -3}, {7, 4, 2, -7}, {15, 4, 1, -8}, {255, 8, 1, -128}};
    const int* kind = kinds[draw.one_in(2) ? 0 : draw.between(1, 5)];
    const int most = kind[0], bits = kind[1], part = bits == 8 ? 4 : bits;
    const int group = draw.one_in(3) ? kInputs * draw.between(1, 8) : static_cast<int>(length);
    std::vector<std::uint8_t> codes(panels * panel_bytes(inputs, bits));
    for (std::uint8_t& byte : codes)
        for (int shift = 0; shift < 8; shift += part) {
            const int largest = most < (1 << part) - 1 ? most : (1 << part) - 1;
            byte = static_cast<std::uint8_t>(byte | (extreme ? largest : draw.between(0, largest)) << shift);
        }
    const std::size_t groups = (length + group - 1) / group;
    const std::vector<float> scales = draw.floats(columns * groups);
    const std::vector<float> bias = zeros ? draw.odd_numbers(columns) : draw.floats(columns);
    const CodeMatrix w = {outputs, inputs, bits, most, kind[2], kind[3], group, codes.data(), scales.data(), bias.data()};
    Rows activations = quantized(*portable, x, rows, inputs);
    compare("products", text({rows, inputs, outputs, bits, group}), checksum, [&](const Kernels& set) {
        std::vector<float> out(static_cast<std::size_t>(rows) * outputs + kBehind, 77.0f);
        std::vector<std::uint8_t> scratch(scratch_bytes(inputs, bits));
        set.codes(activations.view(), rows, w, activation, out.data(), 0, panels, scratch.data());
        return out;
    });
    if (-kind[3] % kind[2] != 0) return;  // no code is 0
    const Mask mask(outputs, inputs, draw_kept(draw, outputs, inputs).data());
    const int first = draw.between(0, panels - 1);
    compare("masked products", text({rows, inputs, outputs, bits, group}), checksum, [&](const Kernels& set) {
        std::vector<float> out(static_cast<std::size_t>(rows) * outputs + kBehind, 77.0f);
        std::vector<std::uint8_t> scratch(scratch_bytes(inputs, bits));
        set.masked_codes(activations.view(), rows, w, mask.view(), activation, out.data(), first, panels, scratch.data());
        return out;
    });
}

void check_floats(Draw& draw, Checksum& checksum) {
    const int rows = draw.between(1, 30), inputs = draw_inputs(draw), outputs = draw.between(1, 70);
    const int panels = (outputs + kColumns - 1) / kColumns;
    const auto activation = static_cast<Activation>(draw.between(0, 5));
    const std::vector<float> x = draw.floats(static_cast<std::size_t>(rows) * inputs);
    const std::vector<float> weights = draw.floats(static_cast<std::size_t>(panels) * kColumns * inputs);
    const std::vector<float> bias = draw.floats(static_cast<std::size_t>(panels) * kColumns);
    std::vector<std::uint16_t> upper(weights.size());
    for (std::size_t i = 0; i < upper.size(); i++) {
        std::uint32_t bits;
        std::memcpy(&bits, &weights[i], sizeof bits);
        upper[i] = static_cast<std::uint16_t>(bits >> 16);
    }
    const bool bfloat16 = draw.one_in(2);
    const FloatMatrix w = {outputs, inputs, bfloat16 ? nullptr : weights.data(), upper.data(), bias.data()};
    compare("products of floats", text({rows, inputs, outputs}), checksum, [&](const Kernels& set) {
        std::vector<float> out(static_cast<std::size_t>(rows) * outputs + kBehind, 77.0f);
        set.floats(x.data(), rows, w, activation, out.data(), 0, panels);
        return out;
    });
}

// The first outputs of the second half of a matrix, and the first inputs.
struct Part {
    int rows, inputs, outputs, half;
    Whole whole;
    std::vector<float> x, bias;

    explicit Part(Draw& draw) : rows(draw.between(1, 14)), inputs(draw.between(1, 300)), outputs(draw.between(1, 60)) {
        half = static_cast<int>(padded(outputs + draw.between(0, 40), kColumns));
        whole = {2 * half, inputs + draw.between(0, 90), outputs + draw.between(0, 20)};
        x = draw.floats(static_cast<std::size_t>(rows) * inputs);
        bias = draw.floats(2 * half);
    }

    int panels() const { return (outputs + kColumns - 1) / kColumns; }
    int skipped() const { return half / kColumns; }  // panels

    // The answer of the part, which must be that of a matrix that has nothing else.
    template <class Multiply>
    std::vector<float> answer(const Kernels& set, const Multiply& multiply) const {
        std::vector<float> out(rows * whole.answers + kBehind, 77.0f), alone(rows * outputs), cut;
        multiply(true, out.data());
        multiply(false, alone.data());
        for (int row = 0; row < rows; row++) {
            const auto from = out.begin() + static_cast<std::ptrdiff_t>(row) * whole.answers;
            cut.insert(cut.end(), from, from + outputs);
        }
        expect_same(cut, alone, set.name, "parts of matrices", text({rows, inputs, outputs}));
        return out;
    }
};

void check_part_of_floats(const Part& part, Draw& draw, Checksum& checksum) {
    const std::size_t panel = static_cast<std::size_t>(part.whole.inputs) * kColumns;
    const std::vector<float> weights = draw.floats(2 * part.skipped() * panel);
    const float* const from = weights.data() + part.skipped() * panel;
    std::vector<float> own;
    for (int i = 0; i < part.panels(); i++) own.insert(own.end(), from + i * panel, from + i * panel + part.inputs * kColumns);
    const float* const bias = part.bias.data() + part.half;
    compare("parts of matrices of floats", text({part.rows, part.inputs, part.outputs}), checksum, [&](const Kernels& set) {
        return part.answer(set, [&](bool cut, float* out) {
            FloatMatrix w = {part.outputs, part.inputs, cut ? from : own.data(), nullptr, bias};
            if (cut) w.whole = part.whole;
            set.floats(part.x.data(), part.rows, w, Activation::none, out, 0, part.panels());
        });
    });
}

void check_part_of_codes(const Part& part, Draw& draw, Checksum& checksum) {
    const int kinds[][2] = {{2, 2}, {15, 4}, {255, 8}};  // largest digit, and bits
    const int* kind = kinds[draw.between(0, 2)];
    const int most = kind[0], bits = kind[1], pieces = bits == 8 ? 2 : 1, piece_bits = bits / pieces;
    const int length = static_cast<int>(padded(part.whole.inputs, kInputs)), group = draw.one_in(2) ? kInputs : length;
    const std::size_t panel = panel_bytes(part.whole.inputs, bits), piece = panel_bytes(part.inputs, bits) / pieces;
    const std::size_t columns = 2 * part.half, kept = (padded(part.inputs, kInputs) + group - 1) / group;
    std::vector<std::uint8_t> codes(2 * part.skipped() * panel), own;
    for (std::uint8_t& byte : codes)
        for (int shift = 0; shift < 8; shift += piece_bits)
            byte = static_cast<std::uint8_t>(byte | draw.between(0, std::min(most, (1 << piece_bits) - 1)) << shift);
    const std::uint8_t* const from = codes.data() + part.skipped() * panel;
    for (int i = 0; i < part.panels() * pieces; i++)  // of 8 bits the lower digits, and then the others
        own.insert(own.end(), from + i * panel / pieces, from + i * panel / pieces + piece);
    const std::vector<float> scales = draw.floats(columns * ((length + group - 1) / group));
    const float *const first_scale = scales.data() + part.half, *const bias = part.bias.data() + part.half;
    std::vector<float> own_scales;
    for (std::size_t i = 0; i < kept; i++)
        own_scales.insert(own_scales.end(), first_scale + i * columns, first_scale + i * columns + part.panels() * kColumns);
    Rows rows = quantized(*portable, part.x, part.rows, part.inputs);
    compare("parts of matrices of codes", text({part.rows, part.inputs, part.outputs, bits, group}), checksum, [&](const Kernels& set) {
        std::vector<std::uint8_t> scratch(scratch_bytes(part.inputs, bits));
        return part.answer(set, [&](bool cut, float* out) {
            CodeMatrix w = {part.outputs, part.inputs, bits, most, 1, -1, group, cut ? from : own.data(),
                            cut ? first_scale : own_scales.data(), bias};
            if (cut) w.whole = part.whole;
            set.codes(rows.view(), part.rows, w, Activation::none, out, 0, part.panels(), scratch.data());
        });
    });
}

void check_part(Draw& draw, Checksum& checksum) {
    const Part part(draw);
    draw.one_in(2) ? check_part_of_floats(part, draw, checksum) : check_part_of_codes(part, draw, checksum);
}

// What is listed of a matrix, from nothing over gaps of more than a byte to all of it, taken off products.
void check_mask(Draw& draw, Checksum& checksum) {
    const int rows = draw.between(1, 150), inputs = draw_inputs(draw), outputs = draw.between(1, 70);
    const int panels = (outputs + kColumns - 1) / kColumns;
    const bool bfloat16 = draw.one_in(2);
    const auto activation = static_cast<Activation>(draw.between(0, 5));
    const Mask mask(outputs, inputs, draw_kept(draw, outputs, inputs).data());
    const std::vector<float> columns = draw.floats(padded(rows, kLanes) * inputs);
    const std::vector<float> weights = draw.floats(static_cast<std::size_t>(panels) * kColumns * inputs);
    const std::vector<float> bias = draw.floats(static_cast<std::size_t>(panels) * kColumns);
    const std::vector<float> products = draw.floats(static_cast<std::size_t>(rows) * outputs);
    std::vector<std::uint16_t> upper(weights.size());
    for (std::size_t i = 0; i < upper.size(); i++) upper[i] = static_cast<std::uint16_t>(bits_of(weights[i]) >> 16);
    const FloatMatrix w = {outputs, inputs, bfloat16 ? nullptr : weights.data(), upper.data(), bias.data()};
    const int first = draw.between(0, panels - 1);
    const MaskRows listed = draw.one_in(8) ? MaskRows() : mask.view();
    compare("masked products", text({rows, inputs, outputs}), checksum, [&](const Kernels& set) {
        std::vector<float> out(products);
        out.resize(out.size() + kBehind, 77.0f);
        set.mask(columns.data(), rows, w, listed, activation, out.data(), first, panels);
        return out;
    });
}

void check_gate(Draw& draw, Checksum& checksum) {
    const int rows = draw.between(1, 8), width = draw.between(1, 200);
    const auto activation = static_cast<Activation>(draw.between(0, 5));
    const std::vector<float> x = draw.floats(static_cast<std::size_t>(rows) * 2 * width);
    compare("gates", text({rows, width}), checksum, [&](const Kernels& set) {
        std::vector<float> out(static_cast<std::size_t>(rows) * width + kBehind, 77.0f);
        set.gate(x.data(), width, activation, out.data(), 0, rows);
        return out;
    });
}

void check_norm(Draw& draw, Checksum& checksum) {
    const int rows = draw.between(1, 8), width = draw.between(1, 800);
    const std::size_t count = static_cast<std::size_t>(rows) * width;
    const std::vector<float> x = draw.floats(count), residual = draw.floats(count);
    const std::vector<float> weight = draw.floats(width), bias = draw.floats(width);
    const bool alone = draw.one_in(2), in_place = draw.one_in(2);
    const Norm norm = {weight.data(), bias.data(), draw.one_in(2) ? 1e-5f : 1e-12f, draw.one_in(2)};
    compare("norms", text({rows, width}), checksum, [&](const Kernels& set) {
        std::vector<float> out(count + kBehind, 77.0f);
        if (in_place) std::copy(x.begin(), x.end(), out.begin());
        set.norm(in_place ? out.data() : x.data(), alone ? nullptr : residual.data(), width, norm, out.data(), 0, rows);
        return out;
    });
}

void check_attend(Draw& draw, Checksum& checksum) {
    const int heads = draw.between(1, 3), width = draw.between(1, 80), sequences = draw.between(1, 3);
    std::vector<std::int32_t> starts = {0};
    int longest = 0;
    for (int i = 0; i < sequences; i++) {
        const int length = draw.between(1, 70);
        longest = length > longest ? length : longest;
        starts.push_back(starts.back() + length);
    }
    const std::size_t count = static_cast<std::size_t>(starts.back()) * heads * width;
    const std::vector<float> qkv = draw.floats(3 * count);
    Attention attention = {qkv.data(), nullptr, starts.data(), heads, width, 1.0f / std::sqrt(static_cast<float>(width))};
    attention.rounded = draw.one_in(2);
    attention.window = draw.one_in(3) ? draw.between(1, 40) : 0;
    attention.longest = longest + draw.between(0, 5);
    const std::vector<float> bias = draw.floats(heads * bias_row(attention.longest));
    if (draw.one_in(3)) attention.bias = bias.data();
    compare("attentions", text({starts.back(), heads, width}), checksum, [&](const Kernels& set) {
        std::vector<float> out(count + kBehind, 77.0f);
        std::vector<std::uint8_t> scratch(HeadScratch(nullptr, longest, width, attention.rounded).bytes);
        Attention here = attention;
        here.out = out.data();
        for (int part = 0; part < sequences * heads; part++) set.attend(here, part / heads, part % heads, scratch.data());
        return out;
    });
}

// Queries of the last tokens, whose head keeps the keys of all.
void check_attend_kept(Draw& draw, Checksum& checksum) {
    const int heads = draw.between(1, 4), width = draw.between(1, 80), length = draw.between(1, 70);
    const int tokens = draw.between(1, length < 12 ? length : 12);
    const bool rounded = draw.one_in(2);
    const std::vector<float> queries = draw.floats(static_cast<std::size_t>(tokens) * heads * width);
    const std::vector<float> keys = draw.floats(static_cast<std::size_t>(length) * width), values = draw.floats(keys.size());
    const std::size_t row = static_cast<std::size_t>(heads) * width, all = padded(length, kLanes);
    compare("attentions to what is kept", text({length, tokens, heads, width}), checksum, [&](const Kernels& set) {
        std::vector<float> out(queries.size() + kBehind, 77.0f);
        std::vector<std::uint8_t> kept_keys(all / kLanes * KeptHead::key_bytes(width, rounded));
        std::vector<float> scales(all), kept_values(all * padded(width, kLanes));
        std::vector<std::uint8_t> scratch(causal_scratch_bytes(length, width, rounded));
        const KeptHead kept = {kept_keys.data(), scales.data(), kept_values.data()};
        for (int key = 0; key < length; key++) set.keep(&keys[key * width], &values[key * width], width, rounded, kept, key);
        set.attend_kept({queries.data(), row, out.data(), row, tokens, length - tokens, heads, width, 0.3f, rounded}, kept,
                        scratch.data());
        return out;
    });
}

void choose(int count, char** names) {
    portable = find_kernels("portable");
    for (const InstructionSet& set : instruction_sets()) {
        bool chosen = count == 0 && set.is_here;
        for (int i = 0; i < count; i++) chosen = chosen || std::strcmp(names[i], set.kernels->name) == 0;
        if (chosen && set.kernels != portable) compared.push_back(set.kernels);
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 3) {
        std::fprintf(stderr, "usage: agreement SEED CASES [NAME...]\n");
        return 2;
    }
    const std::uint64_t seed = std::strtoull(arguments[1], nullptr, 10);
    const int cases = std::atoi(arguments[2]);
    choose(count - 3, arguments + 3);
    std::printf("compared:");
    for (const Kernels* set : compared) std::printf(" %s", set->name);
    std::printf("\n");
    const struct {
        const char* name;
        void (*check)(Draw&, Checksum&);
    } kernels[] = {{"quantize", check_quantize}, {"codes", check_codes}, {"floats", check_floats},
                   {"part", check_part},         {"mask", check_mask},   {"norm", check_norm},
                   {"gate", check_gate},         {"attend", check_attend}, {"attend_kept", check_attend_kept}};
    for (const auto& kernel : kernels) {
        Draw draw(seed);
        Checksum checksum;
        for (int i = 0; i < cases; i++) kernel.check(draw, checksum);
        std::printf("%s: %d cases, checksum %016llx\n", kernel.name, cases, checksum.value());
        std::fflush(stdout);
    }
    return 0;
}
