// The vector types of CUDA and their make_ functions, with CUDA's alignments.
#ifndef EMU_VECTOR_TYPES_H
#define EMU_VECTOR_TYPES_H

// The last parameters of many functions: the line that called them, for reports.
#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

#define EMU_VECTOR_TYPES(T, name, align2, align4)                                                                      \
    struct name##1 {                                                                                                   \
        T x;                                                                                                           \
    };                                                                                                                 \
    struct alignas(align2) name##2 {                                                                                   \
        T x, y;                                                                                                        \
    };                                                                                                                 \
    struct name##3 {                                                                                                   \
        T x, y, z;                                                                                                     \
    };                                                                                                                 \
    struct alignas(align4) name##4 {                                                                                   \
        T x, y, z, w;                                                                                                  \
    };                                                                                                                 \
    inline name##1 make_##name##1(T x) { return name##1 {x}; }                                                         \
    inline name##2 make_##name##2(T x, T y) { return name##2 {x, y}; }                                                 \
    inline name##3 make_##name##3(T x, T y, T z) { return name##3 {x, y, z}; }                                         \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4 {x, y, z, w}; }

EMU_VECTOR_TYPES(signed char, char, 2, 4)
EMU_VECTOR_TYPES(unsigned char, uchar, 2, 4)
EMU_VECTOR_TYPES(short, short, 4, 8)
EMU_VECTOR_TYPES(unsigned short, ushort, 4, 8)
EMU_VECTOR_TYPES(int, int, 8, 16)
EMU_VECTOR_TYPES(unsigned int, uint, 8, 16)
EMU_VECTOR_TYPES(long long, longlong, 16, 16)
EMU_VECTOR_TYPES(unsigned long long, ulonglong, 16, 16)
EMU_VECTOR_TYPES(float, float, 8, 16)
EMU_VECTOR_TYPES(double, double, 16, 16)
#undef EMU_VECTOR_TYPES

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

#endif // EMU_VECTOR_TYPES_H
