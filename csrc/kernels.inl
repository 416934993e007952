// The kernels, written once on 16 lanes. Included inside the namespace of an instruction set, after its `Floats` and the
// integer products that it does in its own way.

constexpr float kLargestByte = 127.0f;
// Whole numbers below it are floats without loss.
constexpr float kExact = 16777216.0f;

// e^x for x <= 88, with an error of two units in the last place; exactly 0 below -87.3.
// e^x = 2^n e^r with |r| <= ln 2 / 2; the polynomial is the minimax one of degree 6.
inline Floats exponential(Floats x) {
    const Floats lowest = fill(-87.3f), bounded = max(lowest, x);  // in this order NaN stays NaN
    const Floats n = round(bounded * fill(1.44269504f));
    Floats r = fma(n, fill(-0.693359375f), bounded);
    r = fma(n, fill(2.12194440e-4f), r);
    Floats y = fill(1.3956052e-3f);
    y = fma(y, r, fill(8.3751287e-3f));
    y = fma(y, r, fill(4.1666083e-2f));
    y = fma(y, r, fill(1.6666415e-1f));
    y = fma(y, r, fill(0.5f));
    y = fma(y, r, fill(1.0f));
    y = fma(y, r, fill(1.0f));
    return where_less(x, lowest, fill(0.0f), y * power_of_two(n));
}

// erf x: x P(x^2) up to 1, and 1 - e^Q(x) above, where Q is a polynomial for ln erfc; both minimax.
inline Floats error_function(Floats x) {
    const Floats square = x * x;
    Floats inner = fill(7.8891193e-5f);
    inner = fma(inner, square, fill(-8.0208411e-4f));
    inner = fma(inner, square, fill(5.1895352e-3f));
    inner = fma(inner, square, fill(-2.6854444e-2f));
    inner = fma(inner, square, fill(1.1283600e-1f));
    inner = fma(inner, square, fill(-3.7612626e-1f));
    inner = fma(inner, square, fill(1.1283791f));
    inner = inner * x;
    const Floats four = fill(4.0f), size = abs(x);
    const Floats t = where_less(size, four, size, four);  // erf is 1 from there on
    Floats outer = fill(1.5998190e-6f);
    outer = fma(outer, t, fill(-4.5298089e-5f));
    outer = fma(outer, t, fill(5.9020316e-4f));
    outer = fma(outer, t, fill(-4.7276882e-3f));
    outer = fma(outer, t, fill(2.6327522e-2f));
    outer = fma(outer, t, fill(-1.0990973e-1f));
    outer = fma(outer, t, fill(-6.3201344e-1f));
    outer = fma(outer, t, fill(-1.1301197f));
    outer = fma(outer, t, fill(2.9102541e-4f));
    return where_less(size, fill(1.0f), inner, copy_sign(fill(1.0f) - exponential(outer), x));
}

inline Floats logistic(Floats x) {
    const Floats e = exponential(fill(0.0f) - abs(x)), one = fill(1.0f);
    return where_less(x, fill(0.0f), e / (one + e), one / (one + e));
}

inline Floats activate(Floats x, Activation activation) {
    switch (activation) {
        case Activation::gelu:
            return x * fma(error_function(x * fill(0.70710678f)), fill(0.5f), fill(0.5f));
        case Activation::relu:
            return max(fill(0.0f), x);
        case Activation::silu:
            return x * logistic(x);
        case Activation::tanh: {
            const Floats e = exponential(fill(-2.0f) * abs(x)), one = fill(1.0f);
            return copy_sign((one - e) / (one + e), x);
        }
        case Activation::none:
            break;
    }
    return x;
}

// Rows of a length that is no multiple of 16 end in a part of a vector; the rest of it is filled up.
inline Floats load_part(const float* from, int count, float filling = 0.0f) {
    if (count >= kLanes) return load(from);
    float part[kLanes];
    for (int i = 0; i < kLanes; i++) part[i] = i < count ? from[i] : filling;
    return load(part);
}

inline void store_part(float* to, Floats x, int count) {
    if (count >= kLanes) return store(to, x);
    float part[kLanes];
    store(part, x);
    std::memcpy(to, part, sizeof(float) * count);
}

// Scores of keys that are there; those that fill up a vector are as small as can be.
inline Floats keep_first(Floats x, int count) {
    if (count >= kLanes) return x;
    float part[kLanes];
    store(part, x);
    return load_part(part, count, -3.4e38f);
}

// NaN where one of the numbers is none, or infinite.
inline float largest_magnitude(const float* x, int count) {
    Floats most = fill(0.0f), zero = fill(0.0f);
    for (int i = 0; i < count; i += kLanes) {
        const Floats part = load_part(x + i, count - i);
        most = max(abs(part), most);
        zero = fma(part, fill(0.0f), zero);
    }
    return largest(most) + sum(zero);
}

// What 1 is multiplied with to become int8, and int8 to become what it stands for.
struct Steps {
    float up, down;
};

// A row with something that is no number becomes NaN throughout, whatever its codes.
inline Steps steps_for(float most) {
    if (most != most) return {0.0f, most};
    // Below it the step would be infinite; such a row counts as zeros.
    return most > 1e-36f ? Steps{kLargestByte / most, most / kLargestByte} : Steps{1.0f, 1.0f};
}

inline Floats round_to(Floats x, float up) { return round(x * fill(up)); }

void quantize(const float* x, int rows, int inputs, QuantizedRows out, int first, int last) {
    const int length = static_cast<int>(padded(inputs, kInputs));
    for (int tile = first; tile < last; tile++) {
        const int start = tile * kRows, count = rows - start < kRows ? rows - start : kRows;
        std::int8_t* values = out.values + static_cast<std::size_t>(start) * length;
        for (int row = 0; row < count; row++) {
            const float* from = x + static_cast<std::size_t>(start + row) * inputs;
            const Steps steps = steps_for(largest_magnitude(from, inputs));
            Floats total = fill(0.0f);
            for (int k = 0; k < inputs; k += kLanes) {
                const Floats whole = round_to(load_part(from + k, inputs - k), steps.up);
                total = total + whole;
                alignas(16) std::int8_t bytes[kLanes];
                store_bytes(bytes, whole);
                for (int part = 0; part < 4; part++)
                    std::memcpy(values + 4 * ((k / 4 + part) * count + row), bytes + 4 * part, 4);
            }
            out.scales[start + row] = steps.down;
            const float whole_sum = sum(total);
            const bool is_number = whole_sum > -kExact && whole_sum < kExact;
            out.sums[start + row] = is_number ? static_cast<std::int32_t>(whole_sum) : 0;
        }
    }
}

// A tile of rows, or several whole ones, with one panel: sums, then scales, bias and activation, [rows][stride].
template <int rows, bool unpacked>
inline void tile_product(const std::int8_t* x, const float* row_scales, const std::int32_t* row_sums,
                         const std::uint8_t* codes, const TernaryMatrix& w, int column, Activation activation,
                         float* out, int stride) {
    alignas(64) std::int32_t sums[rows * kColumns];
    const int inputs = static_cast<int>(padded(w.inputs, kInputs));
    if constexpr (unpacked)
        multiply<rows>(x, codes, inputs, sums);
    else
        multiply_packed<rows>(x, codes, inputs, sums);
    const Floats scales = load(w.scales + column), bias = load(w.bias + column);
    for (int row = 0; row < rows; row++) {
        // Codes are stored as code + 1; what that adds is the sum of the row.
        for (int i = 0; i < kColumns; i++) sums[row * kColumns + i] -= row_sums[row];
        const Floats scaled = from_integers(sums + row * kColumns) * fill(row_scales[row]);
        const Floats y = activate(fma(scaled, scales, bias), activation);
        store_part(out + static_cast<std::size_t>(row) * stride, y, w.outputs - column);
    }
}

// From so many rows on, a panel is unpacked once for all of them.
constexpr int kRowsToUnpack = 12;

template <bool unpacked>
inline void panel_product(const QuantizedRows& x, int rows, const std::uint8_t* codes, const TernaryMatrix& w,
                          int column, Activation activation, float* out, int stride) {
    const std::size_t length = padded(w.inputs, kInputs);
    int row = 0;
    const auto run = [&](auto count) {
        tile_product<decltype(count)::value, unpacked>(x.values + row * length, x.scales + row, x.sums + row, codes, w,
                                                       column, activation,
                                                       out + static_cast<std::size_t>(row) * stride, stride);
    };
    if constexpr (unpacked && kTilesAtOnce > 1) {
        constexpr int at_once = kTilesAtOnce * kRows;
        for (; rows - row >= at_once; row += at_once) run(std::integral_constant<int, at_once>());
    }
    for (; row < rows; row += kRows) {
        switch (rows - row < kRows ? rows - row : kRows) {
            case 1: run(std::integral_constant<int, 1>()); break;
            case 2: run(std::integral_constant<int, 2>()); break;
            case 3: run(std::integral_constant<int, 3>()); break;
            case 4: run(std::integral_constant<int, 4>()); break;
            case 5: run(std::integral_constant<int, 5>()); break;
            default: run(std::integral_constant<int, kRows>()); break;
        }
    }
}

void ternary(const QuantizedRows& x, int rows, const TernaryMatrix& w, Activation activation, float* out, int stride,
             int first, int last, std::uint8_t* scratch) {
    const std::size_t length = padded(w.inputs, kInputs);
    for (int panel = first; panel < last; panel++) {
        const int column = panel * kColumns;
        const std::uint8_t* codes = w.panels + static_cast<std::size_t>(panel) * length * kColumns / 4;
        if (rows >= kRowsToUnpack) {
            unpack_panel(codes, static_cast<int>(length), scratch);
            panel_product<true>(x, rows, scratch, w, column, activation, out + column, stride);
        } else {
            panel_product<false>(x, rows, codes, w, column, activation, out + column, stride);
        }
    }
}

void norm(const float* x, const float* residual, int width, const Norm& norm, float* out, int first, int last) {
    for (int row = first; row < last; row++) {
        const std::size_t offset = static_cast<std::size_t>(row) * width;
        const auto added = [&](int i) {
            const Floats one = load_part(x + offset + i, width - i);
            return residual == nullptr ? one : one + load_part(residual + offset + i, width - i);
        };
        Floats total = fill(0.0f);
        for (int i = 0; i < width; i += kLanes) {
            const Floats y = added(i);
            total = total + y;
            store_part(out + offset + i, y, width - i);
        }
        const float mean = sum(total) / static_cast<float>(width);
        Floats squares = fill(0.0f);
        for (int i = 0; i < width; i += kLanes) {
            const Floats apart = load_part(out + offset + i, width - i, mean) - fill(mean);
            squares = fma(apart, apart, squares);
        }
        const float deviation = std::sqrt(sum(squares) / static_cast<float>(width) + norm.epsilon);
        const Floats inverse = fill(1.0f / deviation);
        for (int i = 0; i < width; i += kLanes) {
            const Floats apart = (load_part(out + offset + i, width - i) - fill(mean)) * inverse;
            const Floats y = fma(apart, load_part(norm.weight + i, width - i), load_part(norm.bias + i, width - i));
            store_part(out + offset + i, y, width - i);
        }
    }
}

// Where the parts of the scratch of one head lie.
struct HeadScratch {
    std::int16_t* keys;     // [length / 16][pairs][16][2]
    std::int16_t* queries;  // [4][pairs][2]
    float* key_scales;      // [length, rounded up to 16]
    float* values;          // [length][width, rounded up to 16], rounded and back
    float* weights;         // [4][length, rounded up to 16]

    HeadScratch(std::uint8_t* memory, int length, int width) {
        const std::size_t keys_padded = padded(length, kLanes), pairs = (width + 1) / 2;
        keys = reinterpret_cast<std::int16_t*>(memory);
        queries = keys + keys_padded * pairs * 2;
        key_scales = reinterpret_cast<float*>(queries + padded(4 * pairs * 2, 32));
        values = key_scales + keys_padded;
        weights = values + length * padded(width, kLanes);
    }
};

// One head of a row as int16, pairs [pairs][stride][2], and the scale that undoes it.
inline float round_head(const float* from, int width, std::int16_t* to, int stride) {
    const Steps steps = steps_for(largest_magnitude(from, width));
    for (int i = 0; i < width; i += kLanes) {
        std::int8_t bytes[kLanes];
        store_bytes(bytes, round_to(load_part(from + i, width - i), steps.up));
        for (int j = 0; j < kLanes && i + j < width + width % 2; j++)
            to[(i + j) / 2 * 2 * stride + j % 2] = bytes[j];
    }
    return steps.down;
}

inline void round_values(const float* from, int width, float* to) {
    const Steps steps = steps_for(largest_magnitude(from, width));
    for (int i = 0; i < width; i += kLanes)
        store(to + i, round_to(load_part(from + i, width - i), steps.up) * fill(steps.down));
}

// Scores of up to four queries, their exponentials as int8 steps in `weights`, and what those are multiplied with.
template <int rows>
inline void weigh(const HeadScratch& scratch, const float* query_scales, int length, int pairs, float factor,
                  float* multipliers) {
    const int keys = static_cast<int>(padded(length, kLanes));
    float most[rows];
    for (int row = 0; row < rows; row++) most[row] = -3.4e38f;
    for (int key = 0; key < keys; key += kLanes) {
        alignas(64) std::int32_t sums[rows * kLanes];
        score<rows>(scratch.queries, scratch.keys + static_cast<std::size_t>(key) * pairs * 2, pairs, sums);
        const Floats key_scales = load(scratch.key_scales + key);
        for (int row = 0; row < rows; row++) {
            const Floats scaled = from_integers(sums + row * kLanes) * fill(query_scales[row] * factor) * key_scales;
            const Floats scores = keep_first(scaled, length - key);
            store(scratch.weights + row * keys + key, scores);
            const float here = largest(scores);
            most[row] = here > most[row] ? here : most[row];
        }
    }
    for (int row = 0; row < rows; row++) {
        Floats total = fill(0.0f);
        for (int key = 0; key < keys; key += kLanes) {
            float* place = scratch.weights + row * keys + key;
            const Floats e = exponential(load(place) - fill(most[row]));
            total = total + e;
            store(place, round_to(e, kLargestByte));  // the largest probability is that of e = 1
        }
        multipliers[row] = 1.0f / sum(total) / kLargestByte;
    }
}

template <int rows>
inline void mix(const HeadScratch& scratch, const float* multipliers, int length, int width, float* out, int stride) {
    const std::size_t keys = padded(length, kLanes), row_length = padded(width, kLanes);
    for (int i = 0; i < width; i += kLanes) {
        Floats sums[rows];
        for (int row = 0; row < rows; row++) sums[row] = fill(0.0f);
        const float* value = scratch.values + i;
        for (int key = 0; key < length; key++, value += row_length) {
            const Floats values = load(value);
#pragma GCC unroll 4
            for (int row = 0; row < rows; row++)
                sums[row] = fma(fill(scratch.weights[row * keys + key]), values, sums[row]);
        }
        for (int row = 0; row < rows; row++)
            store_part(out + static_cast<std::size_t>(row) * stride + i, sums[row] * fill(multipliers[row]), width - i);
    }
}

void attend(const Attention& attention, int sequence, int head, std::uint8_t* memory) {
    const int begin = attention.starts[sequence], length = attention.starts[sequence + 1] - begin;
    const int width = attention.width, hidden = attention.heads * width, pairs = (width + 1) / 2;
    const HeadScratch scratch(memory, length, width);
    const float* from = attention.qkv + static_cast<std::size_t>(begin) * 3 * hidden + head * width;
    const auto row_of = [&](int token, int which) { return from + (static_cast<std::size_t>(token) * 3 + which) * hidden; };
    const int keys = static_cast<int>(padded(length, kLanes));
    std::memset(scratch.keys, 0, sizeof(std::int16_t) * keys * pairs * 2);
    for (int key = 0; key < keys; key++) {
        if (key >= length) {
            scratch.key_scales[key] = 0.0f;
            continue;
        }
        std::int16_t* place = scratch.keys + static_cast<std::size_t>(key / kLanes) * pairs * 2 * kLanes;
        scratch.key_scales[key] = round_head(row_of(key, 1), width, place + key % kLanes * 2, kLanes);
        round_values(row_of(key, 2), width, scratch.values + key * padded(width, kLanes));
    }
    for (int query = 0; query < length; query += 4) {
        const auto run = [&](auto count) {
            constexpr int rows = decltype(count)::value;
            float query_scales[rows], multipliers[rows];
            for (int row = 0; row < rows; row++)
                query_scales[row] = round_head(row_of(query + row, 0), width, scratch.queries + row * pairs * 2, 1);
            weigh<rows>(scratch, query_scales, length, pairs, attention.factor, multipliers);
            mix<rows>(scratch, multipliers, length, width,
                      attention.out + static_cast<std::size_t>(begin + query) * hidden + head * width, hidden);
        };
        switch (length - query < 4 ? length - query : 4) {
            case 1: run(std::integral_constant<int, 1>()); break;
            case 2: run(std::integral_constant<int, 2>()); break;
            case 3: run(std::integral_constant<int, 3>()); break;
            default: run(std::integral_constant<int, 4>()); break;
        }
    }
}

void dense(const float* x, const float* w, const float* bias, int inputs, int outputs, Activation activation,
           float* out) {
    for (int output = 0; output < outputs; output++) {
        Floats total = fill(0.0f);
        const float* row = w + static_cast<std::size_t>(output) * inputs;
        for (int i = 0; i < inputs; i += kLanes)
            total = fma(load_part(x + i, inputs - i), load_part(row + i, inputs - i), total);
        out[output] = sum(total) + bias[output];
    }
    for (int i = 0; i < outputs; i += kLanes)
        store_part(out + i, activate(load_part(out + i, outputs - i), activation), outputs - i);
}
