// What all that is bound to Python has in common: arrays, tables, threads, and Python's lock.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#ifndef _WIN32
#include <pthread.h>
#include <unistd.h>
#endif

#include "dispatch.h"
#include "encoder.h"

namespace nb = nanobind;

namespace slimformer {

template <class Number, int axes>
using Array = nb::ndarray<const Number, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;
using Answer = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

inline Pool* make_pool() { return new Pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))); }

#ifdef _WIN32
inline Pool& pool() {
    static Pool* shared = make_pool();
    return *shared;
}
#else
// Threads do not live on in a forked process, which gets its own; nor does whoever held the lock there.
inline Pool& pool() {
    static std::mutex* mutex = new std::mutex;
    static pid_t owner = 0;
    static Pool* shared = nullptr;
    static const int watched = pthread_atfork(nullptr, nullptr, [] { mutex = new std::mutex; });
    (void)watched;
    const std::lock_guard<std::mutex> lock(*mutex);
    if (owner != getpid()) {
        shared = make_pool();
        owner = getpid();
    }
    return *shared;
}
#endif

inline const Kernels& kernels_of(const std::string& name) {
    const Kernels* kernels = find_kernels(name.empty() ? nullptr : name.c_str());
    if (kernels == nullptr) throw InputError("this machine has no kernels `" + name + "`");
    return *kernels;
}

// The value of an enumeration by its name.
template <class Value>
Value named(const char* what, const std::string& name, std::initializer_list<const char*> names) {
    int value = 0;
    for (const char* each : names) {
        if (name == each) return static_cast<Value>(value);
        value++;
    }
    throw InputError("there is no " + std::string(what) + " `" + name + "`");
}

inline Activation activation_of(const std::string& name) {
    return named<Activation>("activation", name, {"none", "gelu", "relu", "silu", "tanh", "gelu_tanh"});
}

inline void need(bool fits, const char* what) {
    if (!fits) throw InputError(what);
}

// Python's lock is given back while it lives. A thread that asks for the lock when the interpreter has begun to end is
// ended by Python before 3.14, which unwinds its stack, and C++ aborts at the first function that must not be left so;
// it waits for the end of the process instead, as it does since.
class WithoutLock {
   public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    ~WithoutLock() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;

   private:
    PyThreadState* const state_;
};

// Memory for arrays of NumPy, of which the last one frees it.
template <class Number>
nb::capsule new_memory(std::size_t count) {
    return nb::capsule(new Number[count], [](void* each) noexcept { delete[] static_cast<Number*>(each); });
}

template <class Number>
nb::ndarray<nb::numpy, Number, nb::ndim<2>> new_array(std::size_t rows, std::size_t columns) {
    const nb::capsule owner = new_memory<Number>(rows * columns);
    return {static_cast<Number*>(owner.data()), {rows, columns}, owner};
}

inline Answer make_answer(std::size_t rows, std::size_t columns) { return new_array<float>(rows, columns); }

inline const float* bias_of(const std::optional<Array<float, 1>>& bias, std::size_t rows) {
    need(!bias || bias->size() == rows, "one bias for each row");
    return bias ? bias->data() : nullptr;
}

// A layout as Python tells it: base, digits, lowest code, stride, bytes, and the first and last code that is used.
using LayoutNumbers = std::tuple<int, int, int, int, int, int, int>;

inline Layout layout_of(const LayoutNumbers& numbers) {
    const auto [base, digits, lowest, stride, bytes, first, last] = numbers;
    return {base, digits, lowest, stride, bytes, first, last};
}

inline PackedRows packed_rows(const Array<std::uint8_t, 2>& codes, const Array<float, 2>& scales, int columns, int group,
                       const LayoutNumbers& layout) {
    need(codes.shape(0) < 1u << 31, "a table of this size");
    const PackedRows rows = {codes.data(), scales.data(), static_cast<int>(codes.shape(0)), columns, group,
                             layout_of(layout)};
    rows.check();
    need(codes.shape(1) == rows.row_bytes(), "codes of another number of columns");
    need(scales.shape(0) == codes.shape(0) && scales.shape(1) == rows.groups(), "one scale for each row and group");
    return rows;
}

template <class Weight>
const Weight* float_table(const Array<Weight, 2>& given, Table& table) {
    need(given.shape(0) < 1u << 31 && given.shape(1) < kMost, "a table of this size");
    table.rows = static_cast<int>(given.shape(0));
    table.columns = static_cast<int>(given.shape(1));
    return given.data();
}

// Rows to look up: nothing, floats, bits of bfloat16, or codes with scales, columns, columns of a group, and layout.
inline Table table_of(nb::handle given) {
    Table table;
    if (given.is_none()) return table;
    if (!nb::isinstance<nb::tuple>(given)) {
        if (Array<std::uint16_t, 2> bits; nb::try_cast(given, bits, false))
            table.bfloat16 = float_table(bits, table);
        else
            table.floats = float_table(nb::cast<Array<float, 2>>(given, false), table);
        return table;
    }
    const nb::tuple parts = nb::cast<nb::tuple>(given);
    need(parts.size() == 5, "codes, scales, columns, columns of a group and layout of a packed table");
    table.columns = nb::cast<int>(parts[2]);
    table.packed = packed_rows(nb::cast<Array<std::uint8_t, 2>>(parts[0], false), nb::cast<Array<float, 2>>(parts[1], false),
                               table.columns, nb::cast<int>(parts[3]), nb::cast<LayoutNumbers>(parts[4]));
    table.rows = table.packed.rows;
    return table;
}

// An encoder, and the arrays that it looks rows up in, which Python must not forget before it.
struct BoundEncoder {
    std::unique_ptr<Encoder> encoder;
    std::vector<nb::object> tables;
};

// What Python hands over for a forward; the input points into the arrays, which the caller holds.
Input input_of(const Encoder& encoder, const Array<std::int32_t, 1>& ids, const std::optional<Array<std::int32_t, 1>>& types,
               const Array<std::int32_t, 1>& starts);
Input images_of(const Encoder& encoder, const Array<float, 3>& patches, std::vector<std::int32_t>& starts);

// Parts of the module that stand in files of their own.
void bind_panels(nb::module_& module);
void bind_decoder(nb::module_& module);
void bind_tasks(nb::module_& module, nb::class_<BoundEncoder>& encoder);

}  // namespace slimformer
