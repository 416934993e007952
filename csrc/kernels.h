// What every instruction set offers, as plain functions over plain arrays.
//
// All sums of products of codes are exact integers, and all float arithmetic is done in the same order everywhere: 16
// lanes side by side, fused multiply-adds written out, sums over lanes in one fixed tree. So an answer has the same
// bits on every instruction set, in every batch and with any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace slimformer {

// Columns of a panel of weights, rows of a tile of activations, and inputs whose codes lie in the same bytes.
constexpr int kColumns = 16;
constexpr int kRows = 6;
constexpr int kInputs = 16;
constexpr int kLanes = 16;
// Panels that a set may take at once.
constexpr int kMostPanels = 2;

static constexpr std::size_t padded(std::size_t count, std::size_t unit) { return (count + unit - 1) / unit * unit; }

// Of a matrix of which the first outputs or inputs alone are multiplied with: how many it has, and how many numbers apart
// rows of the answer begin; 0 where it is multiplied with as it is.
struct Whole {
    int outputs = 0;
    int inputs = 0;
    int answers = 0;
};

enum class Activation : int { none, gelu, relu, silu, tanh, gelu_tanh };

// A matrix of codes, [outputs, inputs], each a digit that stands for `stride * digit + lowest`, in panels of 16 outputs.
// 16 outputs and 16 inputs with digits of 2 bits take 64 bytes, in which byte 4 * output + input % 4 holds the digits of
// the inputs i, i + 4, i + 8 and i + 12, the first in the lowest bits. With 4 bits they take 128 bytes: i and i + 4 in the
// first half, i + 8 and i + 12 in the second. Digits of 8 bits are two of 4, the lower ones of all inputs before the others.
struct CodeMatrix {
    int outputs = 0;
    int inputs = 0;
    int bits = 2;
    int most = 2;  // the largest digit
    int stride = 1;
    int lowest = -1;
    int group = 0;  // inputs that share scales, a multiple of 16
    const std::uint8_t* panels = nullptr;
    const float* scales = nullptr;  // [inputs / group, rounded up][outputs, rounded up to 16]
    const float* bias = nullptr;    // [outputs, rounded up to 16]
    Whole whole = {};
};

// Bytes of a panel, of the same with a digit to a byte, and of as many of those as are taken at once.
static constexpr std::size_t panel_bytes(std::size_t inputs, int bits) { return padded(inputs, kInputs) * 2 * bits; }
static constexpr std::size_t digit_bytes(std::size_t inputs, int bits) {
    return padded(inputs, kInputs) * kColumns * (bits == 8 ? 2 : 1);
}
static constexpr std::size_t scratch_bytes(std::size_t inputs, int bits) { return kMostPanels * digit_bytes(inputs, bits); }

// A matrix of floats of 32 bits or bfloat16, [outputs, inputs], in panels of 16 outputs: [outputs / 16][inputs][16],
// outputs rounded up. Products and sums have 32 bits in either case.
struct FloatMatrix {
    int outputs = 0;
    int inputs = 0;
    const float* floats = nullptr;
    const std::uint16_t* bfloat16 = nullptr;  // of the two, one is there
    const float* bias = nullptr;              // [outputs, rounded up to 16]
    Whole whole = {};
};

// What a task keeps of a matrix. Of each output the inputs are listed that it drops, or those that it keeps where
// these are fewer: a byte for each, how many inputs lie between it and the one before; 255 skips as many and lists none.
struct MaskRows {
    const std::uint32_t* starts = nullptr;  // [outputs + 1], of the bytes of an output; null where all is kept
    const std::uint8_t* gaps = nullptr;
    const std::uint8_t* keeps = nullptr;  // [outputs], 1 where the listed inputs are kept, else 0
};

// Rows of activations as int8, 127 standing for the largest magnitude of the row. Six rows form a tile, the last one
// has fewer: [inputs / 4][rows of the tile][4], inputs rounded up to 16.
struct QuantizedRows {
    std::int8_t* values = nullptr;
    float* scales = nullptr;       // [rows]
    std::int32_t* sums = nullptr;  // [rows], of the int8 values
};

// Queries, keys and values of all tokens, [tokens][3 * heads * width], and where each sequence begins.
struct Attention {
    const float* qkv = nullptr;
    float* out = nullptr;                  // [tokens][heads * width]
    const std::int32_t* starts = nullptr;  // [sequences + 1]
    int heads = 0;
    int width = 0;
    float factor = 0;      // of the scores
    bool rounded = false;  // whether operands of both products are rounded to int8
    int window = 0;        // how far from a query a key may be; 0 where any may
    // Added to the scores: [heads][bias_row(longest)], at key - query + longest - 1.
    const float* bias = nullptr;
    int longest = 0;
};

static inline float widened(std::uint16_t bfloat16) {
    const std::uint32_t bits = static_cast<std::uint32_t>(bfloat16) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Floats of one head in a table of biases; the last ones are read with their neighbours and then left out.
static constexpr std::size_t bias_row(std::size_t longest) { return 2 * longest + kLanes; }

// The most queries of a head that a set takes at once.
static constexpr int kMostQueries = 8;

// Where the parts of the scratch of one head lie, and how many bytes they take together.
struct HeadScratch {
    void* keys;        // int16 [length / 16][pairs][16][2] where they are rounded, else float [length / 16][width][16]
    void* queries;     // int16 [kMostQueries][pairs][2], or float [kMostQueries][width]
    float* key_scales; // [length, rounded up to 16]
    float* values;     // [length][width, rounded up to 16]
    float* weights;    // [kMostQueries][length, rounded up to 16]
    std::size_t bytes = 0;

    // Inlined, since each set compiles it with other instructions, and a linker would keep one for all.
    __attribute__((always_inline)) HeadScratch(std::uint8_t* memory, int length, int width, bool rounded) {
        const std::size_t all = padded(length, kLanes), operand = rounded ? 2 * padded(width, 2) : 4 * width;
        const auto take = [&](std::size_t size) {
            const std::uintptr_t place = reinterpret_cast<std::uintptr_t>(memory) + bytes;
            bytes += padded(size, 64);
            return reinterpret_cast<void*>(place);
        };
        keys = take(all * operand);
        queries = take(kMostQueries * operand);
        key_scales = static_cast<float*>(take(4 * all));
        values = static_cast<float*>(take(4 * length * padded(width, kLanes)));
        weights = static_cast<float*>(take(4 * kMostQueries * all));
    }
};

// Keys and values of one head that is kept, as `HeadScratch` has them; the memory is for whole blocks of 16 positions.
struct KeptHead {
    void* keys = nullptr;
    float* key_scales = nullptr;
    float* values = nullptr;

    // Bytes of the keys of 16 positions.
    static constexpr std::size_t key_bytes(std::size_t width, bool rounded) {
        return kLanes * (rounded ? 2 * padded(width, 2) : 4 * width);
    }
};

// Queries of tokens that follow each other in a sequence, for all heads that share the keys and values of one: a query
// sees the keys up to its own position, those of which are kept already.
struct CausalAttention {
    const float* queries = nullptr;  // [tokens][heads][width]
    std::size_t query_stride = 0;    // floats from a token to the next
    float* out = nullptr;            // likewise
    std::size_t out_stride = 0;
    int tokens = 0;
    int position = 0;  // of the first token
    int heads = 0;
    int width = 0;
    float factor = 0;      // of the scores
    bool rounded = false;  // whether operands of both products are rounded to int8
};

struct Norm {
    const float* weight = nullptr;
    const float* bias = nullptr;
    float epsilon = 0;
    bool centred = true;  // whether the mean is taken off; a root mean square (arXiv 1910.07467) has none
};

struct Kernels {
    const char* name;

    // Tiles `first` to `last` of rows of `inputs` floats.
    void (*quantize)(const float* x, int rows, int inputs, QuantizedRows out, int first, int last);

    // Panels `first` to `last` of activation(x W^T + bias), [rows][outputs]; `scratch` has `scratch_bytes`.
    void (*codes)(const QuantizedRows& x, int rows, const CodeMatrix& w, Activation activation, float* out, int first,
                  int last, std::uint8_t* scratch);

    // The same with the weights that a mask drops as 0, for which the matrix has a code.
    void (*masked_codes)(const QuantizedRows& x, int rows, const CodeMatrix& w, const MaskRows& listed, Activation activation,
                         float* out, int first, int last, std::uint8_t* scratch);

    // Panels `first` to `last` of activation(x W^T + bias), [rows][outputs], for [rows][inputs] floats.
    void (*floats)(const float* x, int rows, const FloatMatrix& w, Activation activation, float* out, int first,
                   int last);

    // Masks panels `first` to `last` of x W^T + bias, [rows][outputs], in place, and applies the activation. `columns` has
    // the rows 16 side by side, [rows / 16, rounded up][inputs][16]. With d the sum of x w over the listed inputs of an
    // output, in their order, one fused multiply-add for each from 0 on: x W^T + bias - d where they are dropped, else
    // bias + d.
    void (*mask)(const float* columns, int rows, const FloatMatrix& w, const MaskRows& listed, Activation activation,
                 float* out, int first, int last);

    // Norm of x + residual over `width` floats, for rows `first` to `last`; `residual` may be null, `out` may be `x`.
    void (*norm)(const float* x, const float* residual, int width, const Norm& norm, float* out, int first, int last);

    // activation(first half) * second half of rows of 2 * width floats, for rows `first` to `last`.
    void (*gate)(const float* x, int width, Activation activation, float* out, int first, int last);

    // One head of one sequence; `scratch` is that of a `HeadScratch`.
    void (*attend)(const Attention& attention, int sequence, int head, std::uint8_t* scratch);

    // Keeps the key and the value of a head at a position.
    void (*keep)(const float* key, const float* value, int width, bool rounded, const KeptHead& kept, int position);

    // Attention to what is kept; `scratch` has `causal_scratch_bytes` for all positions up to the last one.
    void (*attend_kept)(const CausalAttention& attention, const KeptHead& kept, std::uint8_t* scratch);
};

static constexpr std::size_t causal_scratch_bytes(std::size_t length, std::size_t width, bool rounded) {
    return padded(kMostQueries * (rounded ? 2 * padded(width, 2) : 4 * width), 64) + 4 * kMostQueries * padded(length, kLanes);
}

}  // namespace slimformer
