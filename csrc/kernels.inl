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

template <Activation activation>
inline Floats activate(Floats x) {
    if constexpr (activation == Activation::gelu) return x * fma(error_function(x * fill(0.70710678f)), fill(0.5f), fill(0.5f));
    if constexpr (activation == Activation::relu) return max(fill(0.0f), x);
    if constexpr (activation == Activation::silu) return x * logistic(x);
    if constexpr (activation == Activation::tanh) {
        const Floats e = exponential(fill(-2.0f) * abs(x)), one = fill(1.0f);
        return copy_sign((one - e) / (one + e), x);
    }
    // x / 2 (1 + tanh u) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
    if constexpr (activation == Activation::gelu_tanh)
        return x * logistic(fill(1.59576912f) * fma(x * x * x, fill(0.044715f), x));
    return x;
}

// Calls `work` with an activation as a constant, so that loops over vectors do not ask for it each time.
template <class Work>
inline void with_activation(Activation activation, const Work& work) {
    switch (activation) {
        case Activation::gelu:
            return work(std::integral_constant<Activation, Activation::gelu>());
        case Activation::relu:
            return work(std::integral_constant<Activation, Activation::relu>());
        case Activation::silu:
            return work(std::integral_constant<Activation, Activation::silu>());
        case Activation::tanh:
            return work(std::integral_constant<Activation, Activation::tanh>());
        case Activation::gelu_tanh:
            return work(std::integral_constant<Activation, Activation::gelu_tanh>());
        case Activation::none:
            return work(std::integral_constant<Activation, Activation::none>());
    }
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

// NaN where one of the numbers is none, or infinite. Two vectors at a time: neither result depends on the order.
inline float largest_magnitude(const float* x, int count) {
    Floats most[2] = {fill(0.0f), fill(0.0f)}, zero[2] = {fill(0.0f), fill(0.0f)};
    const auto add = [&](int which, Floats part) {
        most[which] = max(abs(part), most[which]);
        zero[which] = fma(part, fill(0.0f), zero[which]);
    };
    int i = 0;
    for (; count - i >= 2 * kLanes; i += 2 * kLanes) add(0, load(x + i)), add(1, load(x + i + kLanes));
    for (; i < count; i += kLanes) add(0, load_part(x + i, count - i));
    return largest(max(most[0], most[1])) + sum(zero[0] + zero[1]);
}

// What 1 is multiplied with to become int8, and int8 to become what it stands for.
struct Steps {
    float up, down;
};

// A row with something that is no number becomes NaN throughout, whatever its codes.
inline Steps steps_for(float most) {
    if (most != most) return {0.0f, most};
    // Below it the step would be infinite; such a row counts as zeros. The inverse first, as torch divides a number by a
    // tensor: the last bit decides of a value in the middle of two steps.
    return most > 1e-36f ? Steps{1.0f / most * kLargestByte, most / kLargestByte} : Steps{1.0f, 1.0f};
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

// Calls `work` with a number as a constant, which is `most` where the number is larger.
template <int most, class Work>
inline void with_count(int number, const Work& work) {
    if constexpr (most > 1) {
        if (number < most) return with_count<most - 1>(number, work);
    }
    work(std::integral_constant<int, most>());
}

// Steps of four inputs after which sums of 16 bits may be full, where a set has such.
inline int steps_in_sixteen_bits(int most) { return 32767 / (2 * 127 * most) / 4 * 4; }

// Outputs and inputs that a matrix has in memory, and numbers from a row of the answer to the next.
template <class Matrix>
inline int all_outputs(const Matrix& w) { return w.whole.outputs > 0 ? w.whole.outputs : w.outputs; }
template <class Matrix>
inline int all_inputs(const Matrix& w) { return w.whole.inputs > 0 ? w.whole.inputs : w.inputs; }
template <class Matrix>
inline std::size_t answer_length(const Matrix& w) { return w.whole.answers > 0 ? w.whole.answers : w.outputs; }

// From so many rows on, a panel of 2 bits is unpacked once for all of them.
constexpr int kRowsToUnpack = 12;

// Panels of a matrix side by side: as they are stored, or with a digit to a byte.
template <int panels>
struct Panels {
    const CodeMatrix& w;
    const int column;
    const std::uint8_t* stored;
    const std::uint8_t* digits;  // null where `stored` is read

    static constexpr int kWidth = panels * kColumns;

    int length() const { return static_cast<int>(padded(w.inputs, kInputs)); }

    // Sums of products of a tile of rows, or several whole ones, with the digits of inputs `from` to `to`: [rows][kWidth].
    template <int rows>
    void multiply_range(const std::int8_t* x, int from, int to, std::int32_t* sums) const {
        const int steps = steps_in_sixteen_bits(w.bits == 8 ? 15 : w.most);
        if (digits == nullptr)
            return multiply_packed<rows, panels>(x, stored, panel_bytes(all_inputs(w), w.bits), length(), sums, steps);
        constexpr int tile = rows < kRows ? rows : kRows;
        const std::size_t next = digit_bytes(w.inputs, w.bits);
        const std::int8_t* values = x + static_cast<std::size_t>(from) * tile;
        const std::uint8_t* lower = digits + static_cast<std::size_t>(from) * kColumns;
        multiply<rows, panels>(values, lower, next, to - from, sums, steps);
        if (w.bits < 8) return;
        alignas(64) std::int32_t upper[rows * kWidth];
        multiply<rows, panels>(values, lower + static_cast<std::size_t>(length()) * kColumns, next, to - from, upper, steps);
        for (int i = 0; i < rows * kWidth; i++) sums[i] += 16 * upper[i];
    }

    // The sum of inputs `from` to `to` of a row of a tile.
    template <int rows>
    std::int32_t sum_range(const std::int8_t* x, int row, int from, int to) const {
        std::int32_t sum = 0;
        for (int k = from; k < to; k += 4)
            for (int i = 0; i < 4; i++) sum += x[static_cast<std::size_t>(k) * rows + 4 * row + i];
        return sum;
    }

    // Rows of a tile, or of several whole ones: sums, then scales, bias and activation, [rows][outputs].
    template <int rows>
    void product(const std::int8_t* x, const float* row_scales, const std::int32_t* row_sums, Activation activation,
                 float* out) const {
        Floats y[rows * panels];
        for (int i = 0; i < rows * panels; i++) y[i] = load(w.bias + column + i % panels * kColumns);
        const int columns = static_cast<int>(padded(all_outputs(w), kColumns));
        const float* scales = w.scales + column;
        for (int from = 0; from < length(); from += w.group, scales += columns) {
            const int to = length() - from < w.group ? length() : from + w.group;
            const bool all = from == 0 && to == length();
            alignas(64) std::int32_t sums[rows * kWidth];
            multiply_range<rows>(x, from, to, sums);
            for (int row = 0; row < rows; row++) {
                const std::int32_t row_sum = all ? row_sums[row] : sum_range<rows>(x, row, from, to);
                const Floats row_scale = fill(row_scales[row]);
                for (int panel = 0; panel < panels; panel++) {
                    const Floats codes = from_integers(sums + row * kWidth + panel * kColumns, w.stride, w.lowest * row_sum);
                    Floats& sum = y[row * panels + panel];
                    sum = fma(codes * row_scale, load(scales + panel * kColumns), sum);
                }
            }
        }
        with_activation(activation, [&](auto which) {
            for (int i = 0; i < rows * panels; i++) {
                const int from = i % panels * kColumns;
                store_part(out + i / panels * answer_length(w) + from,
                           activate<decltype(which)::value>(y[i]), w.outputs - column - from);
            }
        });
    }
};

// Sets the digits that a mask drops to that of 0, in a panel with a digit to a byte that begins with output `column`.
inline void drop_digits(const CodeMatrix& w, const MaskRows& listed, int column, std::uint8_t* digits) {
    const int outputs = w.outputs - column < kColumns ? w.outputs - column : kColumns;
    const int zero = -w.lowest / w.stride, bits = w.bits == 8 ? 4 : w.bits;
    const auto lower = static_cast<std::uint8_t>(zero & ((1 << bits) - 1)), upper = static_cast<std::uint8_t>(zero >> 4);
    std::uint8_t* const above = digits + padded(w.inputs, kInputs) * kColumns;  // where digits have 8 bits
    for (int i = 0; i < outputs; i++) {
        const auto drop = [&](int from, int to) {
            for (int k = from; k < to; k++) {
                const std::size_t place = static_cast<std::size_t>(k / 4) * 4 * kColumns + 4 * i + k % 4;
                digits[place] = lower;
                if (w.bits == 8) above[place] = upper;
            }
        };
        const bool keeps = listed.keeps[column + i] != 0;
        int next = 0, dropped = 0;  // the input behind the last one that was skipped or listed, and behind the last kept
        for (std::uint32_t at = listed.starts[column + i]; at < listed.starts[column + i + 1]; at++) {
            next += listed.gaps[at];
            if (listed.gaps[at] == 255) continue;
            keeps ? drop(dropped, next) : drop(next, next + 1);
            dropped = ++next;
        }
        if (keeps) drop(dropped, w.inputs);
    }
}

// The columns of some panels side by side, from panel `number` on.
template <int panels>
inline void code_panels(const QuantizedRows& x, int rows, const CodeMatrix& w, const MaskRows& listed, Activation activation,
                        float* out, int number, std::uint8_t* scratch) {
    const std::size_t length = padded(w.inputs, kInputs), half = panel_bytes(all_inputs(w), 4);
    const std::size_t next = panel_bytes(all_inputs(w), w.bits);
    const bool grouped = static_cast<std::size_t>(w.group) < length;
    const bool masked = listed.starts != nullptr;
    const bool unpacked = w.bits > 2 || grouped || masked || rows >= kRowsToUnpack;
    const std::uint8_t* const stored = w.panels + number * next;
    for (int panel = 0; unpacked && panel < panels; panel++) {
        const std::uint8_t* const from = stored + panel * next;
        std::uint8_t* const to = scratch + panel * digit_bytes(w.inputs, w.bits);
        if (w.bits == 2) unpack_panel(from, static_cast<int>(length), to);
        if (w.bits > 2) unpack_nibbles(from, static_cast<int>(length), to);
        if (w.bits == 8) unpack_nibbles(from + half, static_cast<int>(length), to + length * kColumns);
        if (masked) drop_digits(w, listed, (number + panel) * kColumns, to);
    }
    const int column = number * kColumns;
    const Panels<panels> here = {w, column, stored, unpacked ? scratch : nullptr};
    int row = 0;
    const auto run = [&](auto count) {
        here.template product<decltype(count)::value>(x.values + row * length, x.scales + row, x.sums + row, activation,
                                                      out + row * answer_length(w) + column);
    };
    if constexpr (kTilesAtOnce > 1) {
        constexpr int at_once = kTilesAtOnce * kRows;
        if (unpacked && !grouped)
            for (; rows - row >= at_once; row += at_once) run(std::integral_constant<int, at_once>());
    }
    for (; row < rows; row += kRows) with_count<kRows>(rows - row, run);
}

void masked_codes(const QuantizedRows& x, int rows, const CodeMatrix& w, const MaskRows& listed, Activation activation,
                  float* out, int first, int last, std::uint8_t* scratch) {
    for (int number = first; number < last;) {
        const int count = last - number < kPanelsAtOnce ? last - number : kPanelsAtOnce;
        with_count<kPanelsAtOnce>(count, [&](auto panels) {
            code_panels<decltype(panels)::value>(x, rows, w, listed, activation, out, number, scratch);
        });
        number += count;
    }
}

void codes(const QuantizedRows& x, int rows, const CodeMatrix& w, Activation activation, float* out, int first, int last,
           std::uint8_t* scratch) {
    masked_codes(x, rows, w, MaskRows(), activation, out, first, last, scratch);
}

// Asks for weights that are read some lines later, or for what lies behind their end. With several rows there is so much to
// do between one load and the next that a processor sees few of them ahead by itself, and waits where they come from memory.
inline void fetch_ahead(const void* from) {
    constexpr std::uintptr_t kAhead = 2048;
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + kAhead));
}

// Rows with some panels side by side, whose weights are floats or bfloat16.
template <int rows, int panels, class Weight>
inline void float_tile(const float* x, const Weight* weights, const FloatMatrix& w, int column, Activation activation,
                       float* out) {
    const std::size_t inputs = w.inputs, next = static_cast<std::size_t>(all_inputs(w)) * kColumns;
    Floats sums[rows * panels];
    repeat<rows * panels>([&](auto i) { sums[i] = fill(0.0f); });
    for (std::size_t k = 0; k < inputs; k++, weights += kColumns) {
        Floats here[panels];
        repeat<panels>([&](auto panel) {
            fetch_ahead(weights + panel * next);
            here[panel] = load(weights + panel * next);
        });
        repeat<rows>([&](auto row) {
            const Floats value = fill(x[row * inputs + k]);
            repeat<panels>([&](auto panel) {
                sums[row * panels + panel] = fma(value, here[panel], sums[row * panels + panel]);
            });
        });
    }
    // A loop may index only a copy: sums that a variable indexes would be stored in every step above.
    Floats ends[rows * panels];
    repeat<rows * panels>([&](auto i) { ends[i] = sums[i]; });
    with_activation(activation, [&](auto which) {
        for (int i = 0; i < rows * panels; i++) {
            const int from = column + i % panels * kColumns;
            store_part(out + i / panels * answer_length(w) + from,
                       activate<decltype(which)::value>(ends[i] + load(w.bias + from)), w.outputs - from);
        }
    });
}

// The columns of some panels side by side, from panel `number` on.
template <int panels, class Weight>
inline void float_panels(const float* x, int rows, const FloatMatrix& w, const Weight* all, Activation activation,
                         float* out, int number) {
    const int column = number * kColumns;
    const Weight* const weights = all + static_cast<std::size_t>(column) * all_inputs(w);
    constexpr int most = kTilesAtOnce * kRows;
    // In parts of nearly as many rows: with one or two that are left over, sums would wait for the ones before them.
    for (int row = 0, parts = (rows + most - 1) / most; parts > 0; parts--) {
        const int at_once = (rows - row + parts - 1) / parts;
        with_count<most>(at_once, [&](auto count) {
            float_tile<decltype(count)::value, panels>(x + static_cast<std::size_t>(row) * w.inputs, weights, w, column,
                                                       activation, out + row * answer_length(w));
        });
        row += at_once;
    }
}

void floats(const float* x, int rows, const FloatMatrix& w, Activation activation, float* out, int first, int last) {
    for (int number = first; number < last;) {
        const int count = last - number < kPanelsAtOnce ? last - number : kPanelsAtOnce;
        with_count<kPanelsAtOnce>(count, [&](auto panels) {
            constexpr int width = decltype(panels)::value;
            if (w.floats != nullptr)
                float_panels<width>(x, rows, w, w.floats, activation, out, number);
            else
                float_panels<width>(x, rows, w, w.bfloat16, activation, out, number);
        });
        number += count;
    }
}

// Vectors of 16 rows that go through the listed inputs together: a sum waits for the one before it.
constexpr int kMaskVectors = 4;

inline float as_float(float weight) { return weight; }
inline float as_float(std::uint16_t bfloat16) { return widened(bfloat16); }

// Sums over the inputs that bytes from `gap` to `end` list, times `sign`, of the rows of some vectors; the weights of the
// output are every 16th.
template <int vectors, class Weight>
inline void sum_listed(const float* columns, std::size_t inputs, const Weight* weights, const std::uint8_t* gap,
                       const std::uint8_t* end, float sign, float* to) {
    Floats sums[vectors];
    repeat<vectors>([&](auto i) { sums[i] = fill(0.0f); });
    std::size_t k = 0;
    for (; gap != end; gap++) {
        k += *gap;
        if (*gap == 255) continue;
        const Floats weight = fill(as_float(weights[k * kColumns]));
        const float* const here = columns + k * kLanes;
        repeat<vectors>([&](auto i) { sums[i] = fma(load(here + i * inputs * kLanes), weight, sums[i]); });
        k++;
    }
    repeat<vectors>([&](auto i) { store(to + i * kColumns * kLanes, sums[i] * fill(sign)); });
}

// One panel of the rows of some vectors, `count` of them, whose output and `columns` begin with the first.
template <int vectors, class Weight>
inline void mask_tile(const float* columns, int count, const FloatMatrix& w, const Weight* panel, const MaskRows& listed,
                      int column, Activation activation, float* out) {
    const int width = w.outputs - column < kColumns ? w.outputs - column : kColumns;
    alignas(64) float sums[vectors * kColumns * kLanes] = {}, keeps[kColumns] = {};
    for (int i = 0; i < width; i++) {
        const std::uint32_t* const starts = listed.starts + column + i;
        keeps[i] = listed.keeps[column + i];
        sum_listed<vectors>(columns, w.inputs, panel + i, listed.gaps + starts[0], listed.gaps + starts[1],
                            keeps[i] > 0.0f ? 1.0f : -1.0f, sums + i * kLanes);
    }
    const Floats kept = load(keeps), bias = load(w.bias + column);
    with_activation(activation, [&](auto which) {
        for (int row = 0; row < count; row++) {
            float* const to = out + static_cast<std::size_t>(row) * w.outputs + column;
            alignas(64) float part[kColumns];
            const float* const from = sums + row / kLanes * kColumns * kLanes + row % kLanes;
            for (int i = 0; i < kColumns; i++) part[i] = from[i * kLanes];
            const Floats begin = where_less(fill(0.0f), kept, bias, load_part(to, width));
            store_part(to, activate<decltype(which)::value>(begin + load(part)), width);
        }
    });
}

template <class Weight>
inline void mask_panels(const float* columns, int rows, const FloatMatrix& w, const Weight* weights,
                        const MaskRows& listed, Activation activation, float* out, int first, int last) {
    constexpr int at_once = kMaskVectors * kLanes;
    for (int number = first; number < last; number++)
        for (int row = 0; row < rows; row += at_once) {
            const int count = rows - row < at_once ? rows - row : at_once;
            with_count<kMaskVectors>((count + kLanes - 1) / kLanes, [&](auto vectors) {
                mask_tile<decltype(vectors)::value>(columns + static_cast<std::size_t>(row) * w.inputs, count, w,
                                                    weights + static_cast<std::size_t>(number) * kColumns * w.inputs, listed,
                                                    number * kColumns, activation,
                                                    out + static_cast<std::size_t>(row) * w.outputs);
            });
        }
}

inline void activate_panels(int rows, const FloatMatrix& w, Activation activation, float* out, int first, int last) {
    if (activation == Activation::none) return;
    const int end = last * kColumns < w.outputs ? last * kColumns : w.outputs;
    with_activation(activation, [&](auto which) {
        for (int row = 0; row < rows; row++)
            for (int column = first * kColumns; column < end; column += kColumns) {
                float* const to = out + static_cast<std::size_t>(row) * w.outputs + column;
                store_part(to, activate<decltype(which)::value>(load_part(to, end - column)), end - column);
            }
    });
}

void mask(const float* columns, int rows, const FloatMatrix& w, const MaskRows& listed, Activation activation, float* out,
          int first, int last) {
    if (listed.starts == nullptr) return activate_panels(rows, w, activation, out, first, last);
    if (w.floats != nullptr)
        mask_panels(columns, rows, w, w.floats, listed, activation, out, first, last);
    else
        mask_panels(columns, rows, w, w.bfloat16, listed, activation, out, first, last);
}

void gate(const float* x, int width, Activation activation, float* out, int first, int last) {
    with_activation(activation, [&](auto which) {
        for (int row = first; row < last; row++) {
            const float* from = x + static_cast<std::size_t>(row) * 2 * width;
            for (int i = 0; i < width; i += kLanes) {
                const Floats gated = activate<decltype(which)::value>(load_part(from + i, width - i));
                store_part(out + static_cast<std::size_t>(row) * width + i, gated * load_part(from + width + i, width - i),
                           width - i);
            }
        }
    });
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
        const float mean = norm.centred ? sum(total) / static_cast<float>(width) : 0.0f;
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

// What a score is where a key is not seen.
constexpr float kUnseen = -INFINITY;

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

// Queries of a head at once; a sum waits for the one before it, so that eight are better where there is room.
constexpr int kQueries = 4 * kTilesAtOnce;
static_assert(kQueries <= kMostQueries);

// What is multiplied in attention to one head: keys, queries and values as they were made ready.
template <bool rounded>
struct Operands {
    const int width;
    void* const keys;
    float* const key_scales;
    float* const values;
    void* const queries;

    int pairs() const { return (width + 1) / 2; }

    void set_key(int key, const float* from) const {
        if constexpr (rounded) {
            auto* block = static_cast<std::int16_t*>(keys) + static_cast<std::size_t>(key / kLanes) * pairs() * 2 * kLanes;
            key_scales[key] = round_head(from, width, block + key % kLanes * 2, kLanes);
        } else {
            float* block = static_cast<float*>(keys) + static_cast<std::size_t>(key / kLanes) * width * kLanes;
            for (int i = 0; i < width; i++) block[i * kLanes + key % kLanes] = from[i];
            key_scales[key] = 1.0f;
        }
    }

    void set_value(int key, const float* from) const {
        float* to = values + key * padded(width, kLanes);
        const Steps steps = rounded ? steps_for(largest_magnitude(from, width)) : Steps{1.0f, 1.0f};
        for (int i = 0; i < width; i += kLanes) {
            const Floats value = load_part(from + i, width - i);
            store(to + i, rounded ? round_to(value, steps.up) * fill(steps.down) : value);
        }
    }

    // Readies a query as the row-th of those at once, and returns what its products are multiplied with.
    float set_query(int row, const float* from, float factor) const {
        if constexpr (rounded) {
            auto* to = static_cast<std::int16_t*>(queries) + row * pairs() * 2;
            return round_head(from, width, to, 1) * factor;
        } else {
            std::memcpy(static_cast<float*>(queries) + row * width, from, sizeof(float) * width);
            return factor;
        }
    }

    // Products of queries with the 16 keys from `key` on.
    template <int rows>
    void multiply_keys(int key, Floats (&products)[rows]) const {
        if constexpr (rounded) {
            alignas(64) std::int32_t sums[rows * kLanes];
            score<rows>(static_cast<const std::int16_t*>(queries),
                        static_cast<const std::int16_t*>(keys) + static_cast<std::size_t>(key) * pairs() * 2, pairs(), sums);
            for (int row = 0; row < rows; row++) products[row] = from_integers(sums + row * kLanes);
        } else {
            const float* block = static_cast<const float*>(keys) + static_cast<std::size_t>(key) * width;
            const float* from = static_cast<const float*>(queries);
            Floats sums[rows];
            repeat<rows>([&](auto row) { sums[row] = fill(0.0f); });
            for (int i = 0; i < width; i++, block += kLanes) {
                const Floats here = load(block);
                repeat<rows>([&](auto row) { sums[row] = fma(fill(from[row * width + i]), here, sums[row]); });
            }
            repeat<rows>([&](auto row) { products[row] = sums[row]; });
        }
    }
};

// Makes e^(score - most) of scores from key `first` to `end`; returns what sums of values by them are multiplied with.
template <bool rounded>
inline float soften(float* scores, int first, int end, float most) {
    Floats total = fill(0.0f);
    for (int key = first; key < end; key += kLanes) {
        const Floats e = exponential(load(scores + key) - fill(most));
        total = total + e;
        // The largest probability, which becomes 127, is that of e = 1.
        store(scores + key, rounded ? round_to(e, kLargestByte) : e);
    }
    return rounded ? 1.0f / sum(total) / kLargestByte : 1.0f / sum(total);
}

// Scores of 16 keys, of which a query sees those from `from` to `to`; the others are as small as can be.
inline Floats keep_between(Floats scores, int key, int from, int to) {
    if (key >= from && key + kLanes - 1 <= to) return scores;
    float part[kLanes];
    store(part, scores);
    for (int i = 0; i < kLanes; i++)
        if (key + i < from || key + i > to) part[i] = kUnseen;
    return load(part);
}

// One head of one sequence while it is computed.
template <bool rounded>
struct Head {
    const Attention& attention;
    const HeadScratch scratch;
    const int begin, length, head, width, keys;
    const float* const bias;
    const Operands<rounded> operands;

    Head(const Attention& of, int sequence, int number, std::uint8_t* memory)
        : attention(of),
          scratch(memory, of.starts[sequence + 1] - of.starts[sequence], of.width, rounded),
          begin(of.starts[sequence]),
          length(of.starts[sequence + 1] - begin),
          head(number),
          width(of.width),
          keys(static_cast<int>(padded(length, kLanes))),
          bias(of.bias == nullptr ? nullptr : of.bias + number * bias_row(of.longest)),
          operands{width, scratch.keys, scratch.key_scales, scratch.values, scratch.queries} {}

    // Queries, keys or values of a token: 0, 1 or 2.
    const float* row_of(int token, int which) const {
        const std::size_t row = (static_cast<std::size_t>(begin + token) * 3 + which) * attention.heads + head;
        return attention.qkv + row * width;
    }

    void set_keys() const {
        const std::size_t bytes = rounded ? sizeof(std::int16_t) * operands.pairs() * 2 : sizeof(float) * width;
        std::memset(scratch.keys, 0, bytes * keys);
        for (int key = 0; key < length; key++) operands.set_key(key, row_of(key, 1)), operands.set_value(key, row_of(key, 2));
        for (int key = length; key < keys; key++) scratch.key_scales[key] = 0.0f;
    }

    Floats keep_seen(Floats scores, int query, int key) const {
        const int window = attention.window;
        const int from = window > 0 && query - window > 0 ? query - window : 0;
        const int to = window > 0 && query + window < length ? query + window : length - 1;
        return keep_between(scores, key, from, to);
    }

    // Computes queries side by side.
    template <int rows>
    void answer(int query) const {
        // Of kMostQueries in all sets: a value that no query sees is multiplied with zero, which does not hide infinity.
        const int window = attention.window, group = query / kMostQueries * kMostQueries;
        const int first = window > 0 && group > window ? (group - window) / kLanes * kLanes : 0;
        const int end = window > 0 && group + kMostQueries + window < length ? group + kMostQueries + window : length;
        float scales[rows], most[rows], multipliers[rows];
        for (int row = 0; row < rows; row++) {
            scales[row] = operands.set_query(row, row_of(query + row, 0), attention.factor);
            most[row] = kUnseen;
        }
        for (int key = first; key < end; key += kLanes) {
            Floats products[rows];
            operands.template multiply_keys<rows>(key, products);
            const Floats key_scales = load(scratch.key_scales + key);
            for (int row = 0; row < rows; row++) {
                Floats scores = products[row] * fill(scales[row]);
                if (rounded) scores = scores * key_scales;
                if (bias != nullptr) scores = scores + load(bias + key - query - row + attention.longest - 1);
                scores = keep_seen(scores, query + row, key);
                store(scratch.weights + row * keys + key, scores);
                const float here = largest(scores);
                most[row] = here > most[row] ? here : most[row];
            }
        }
        for (int row = 0; row < rows; row++)
            multipliers[row] = soften<rounded>(scratch.weights + row * keys, first, end, most[row]);
        float* out = attention.out + (static_cast<std::size_t>(begin + query) * attention.heads + head) * width;
        const std::size_t row_length = padded(width, kLanes);
        for (int i = 0; i < width; i += kLanes) {
            Floats sums[rows];
            repeat<rows>([&](auto row) { sums[row] = fill(0.0f); });
            const float* value = scratch.values + first * row_length + i;
            for (int key = first; key < end; key++, value += row_length) {
                const Floats values = load(value);
                repeat<rows>([&](auto row) {
                    sums[row] = fma(fill(scratch.weights[row * keys + key]), values, sums[row]);
                });
            }
            repeat<rows>([&](auto row) {
                store_part(out + static_cast<std::size_t>(row) * attention.heads * width + i,
                           sums[row] * fill(multipliers[row]), width - i);
            });
        }
    }

    void run() const {
        set_keys();
        for (int query = 0; query < length; query += kQueries)
            with_count<kQueries>(length - query, [&](auto count) { answer<decltype(count)::value>(query); });
    }
};

void attend(const Attention& attention, int sequence, int head, std::uint8_t* scratch) {
    if (attention.rounded)
        Head<true>(attention, sequence, head, scratch).run();
    else
        Head<false>(attention, sequence, head, scratch).run();
}

void keep(const float* key, const float* value, int width, bool rounded, const KeptHead& kept, int position) {
    const auto set = [&](auto operands) { operands.set_key(position, key), operands.set_value(position, value); };
    if (rounded)
        set(Operands<true>{width, kept.keys, kept.key_scales, kept.values, nullptr});
    else
        set(Operands<false>{width, kept.keys, kept.key_scales, kept.values, nullptr});
}

// Queries of one kept head. What is behind the position of a query changes no bit of its answer, whatever it is: of its
// scores it is taken out, and its values are not touched, since zero times infinity would not be zero.
template <bool rounded>
struct CausalHead {
    const CausalAttention& attention;
    const Operands<rounded> operands;
    float* const weights;  // [rows][stride]
    const std::size_t stride;

    CausalHead(const CausalAttention& of, const KeptHead& kept, std::uint8_t* scratch)
        : attention(of),
          operands{of.width, kept.keys, kept.key_scales, kept.values, scratch},
          weights(reinterpret_cast<float*>(scratch + causal_scratch_bytes(0, of.width, rounded))),
          stride(padded(of.position + of.tokens, kLanes)) {}

    int position_of(int row) const { return attention.position + row / attention.heads; }

    // Computes rows from `first` on side by side; a row is a token and one of the heads.
    template <int rows>
    void answer(int first) const {
        const int width = attention.width, heads = attention.heads;
        int positions[rows];
        float scales[rows], most[rows], multipliers[rows];
        for (int row = 0; row < rows; row++) {
            const int token = (first + row) / heads, head = (first + row) % heads;
            positions[row] = position_of(first + row);
            scales[row] = operands.set_query(row, attention.queries + token * attention.query_stride + head * width, attention.factor);
            most[row] = kUnseen;
        }
        const int end = positions[rows - 1] + 1, shared = positions[0] + 1;
        for (int key = 0; key < end; key += kLanes) {
            Floats products[rows];
            operands.template multiply_keys<rows>(key, products);
            const Floats key_scales = load(operands.key_scales + key);
            for (int row = 0; row < rows; row++) {
                Floats scores = products[row] * fill(scales[row]);
                if (rounded) scores = scores * key_scales;
                scores = keep_between(scores, key, 0, positions[row]);
                store(weights + row * stride + key, scores);
                const float here = largest(scores);
                most[row] = here > most[row] ? here : most[row];
            }
        }
        for (int row = 0; row < rows; row++) multipliers[row] = soften<rounded>(weights + row * stride, 0, end, most[row]);
        const std::size_t row_length = padded(width, kLanes);
        for (int i = 0; i < width; i += kLanes) {
            Floats sums[rows];
            repeat<rows>([&](auto row) { sums[row] = fill(0.0f); });
            const float* value = operands.values + i;
            for (int key = 0; key < shared; key++, value += row_length) {
                const Floats values = load(value);
                repeat<rows>([&](auto row) { sums[row] = fma(fill(weights[row * stride + key]), values, sums[row]); });
            }
            for (int key = shared; key < end; key++, value += row_length) {
                const Floats values = load(value);
                repeat<rows>([&](auto row) {
                    if (key <= positions[row]) sums[row] = fma(fill(weights[row * stride + key]), values, sums[row]);
                });
            }
            repeat<rows>([&](auto row) {
                const int token = (first + row) / heads, head = (first + row) % heads;
                store_part(attention.out + token * attention.out_stride + head * width + i, sums[row] * fill(multipliers[row]), width - i);
            });
        }
    }

    void run() const {
        const int rows = attention.tokens * attention.heads;
        for (int row = 0; row < rows; row += kQueries)
            with_count<kQueries>(rows - row, [&](auto count) { answer<decltype(count)::value>(row); });
    }
};

void attend_kept(const CausalAttention& attention, const KeptHead& kept, std::uint8_t* scratch) {
    if (attention.rounded)
        CausalHead<true>(attention, kept, scratch).run();
    else
        CausalHead<false>(attention, kept, scratch).run();
}
