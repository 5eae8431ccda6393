// bf16 and f16 as two bytes. An operation is that of f64 on both operands, which is exact for these up to its one
// rounding, as the device's operations of one rounding are.
#pragma once

static inline unsigned short cuda_on_cpu_to_bf16(double value) {
  // Rounded to f32 toward odd first, so that the second rounding is the only one that shows.
  float x = (float)value;
  unsigned bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x != x) return 0x7fff;
  if ((double)x != value && !(bits & 1) && !__builtin_isinf(x)) {
    bool away = __builtin_fabs((double)x) > __builtin_fabs(value);
    bits = away ? bits - 1 : bits + 1;
  }
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float cuda_on_cpu_from_bf16(unsigned short half) {
  unsigned bits = (unsigned)half << 16;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
static inline unsigned short cuda_on_cpu_to_f16(double value) {
  if (value != value) return 0x7fff;
  unsigned short sign = __builtin_signbit(value) ? 0x8000 : 0;
  double size = __builtin_fabs(value);
  if (size >= 65520) return sign | 0x7c00;
  // In units of the last place: 2^-24 for subnormal numbers, 2^(e-10) for those from 2^e on.
  int exponent = -14;
  while (exponent < 15 && size >= __builtin_ldexp(1.0, exponent + 1)) exponent++;
  double units = __builtin_rint(__builtin_ldexp(size, 10 - exponent));
  return sign | (unsigned short)(((exponent + 14) << 10) + (unsigned)units);
}
static inline float cuda_on_cpu_from_f16(unsigned short half) {
  int exponent = half >> 10 & 31, fraction = half & 1023;
  float size = exponent == 31 ? (fraction ? __builtin_nanf("") : __builtin_inff())
               : exponent     ? (float)__builtin_ldexp(1024 + fraction, exponent - 25)
                              : (float)__builtin_ldexp(fraction, -24);
  return half & 0x8000 ? -size : size;
}

#define CUDA_ON_CPU_HALF(name, to, from)                                                     \
  struct __attribute__((aligned(2))) name {                                                  \
    unsigned short bits;                                                                     \
    name() = default;                                                                        \
    template <class T>                                                                       \
    name(T value) : bits(to((double)value)) {}                                               \
    operator float() const { return from(bits); }                                            \
    name& operator+=(name b) { return *this = name((double)*this + (double)b); }             \
    name& operator-=(name b) { return *this = name((double)*this - (double)b); }             \
    name& operator*=(name b) { return *this = name((double)*this * (double)b); }             \
    name& operator/=(name b) { return *this = name((double)*this / (double)b); }             \
  };                                                                                         \
  static inline name operator+(name a, name b) { return name((double)a + (double)b); }       \
  static inline name operator-(name a, name b) { return name((double)a - (double)b); }       \
  static inline name operator*(name a, name b) { return name((double)a * (double)b); }       \
  static inline name operator/(name a, name b) { return name((double)a / (double)b); }       \
  static inline name operator-(name a) { a.bits ^= 0x8000; return a; }                       \
  static inline bool operator<(name a, name b) { return (float)a < (float)b; }               \
  static inline bool operator>(name a, name b) { return (float)a > (float)b; }               \
  static inline bool operator<=(name a, name b) { return (float)a <= (float)b; }             \
  static inline bool operator>=(name a, name b) { return (float)a >= (float)b; }             \
  static inline bool operator==(name a, name b) { return (float)a == (float)b; }             \
  static inline bool operator!=(name a, name b) { return (float)a != (float)b; }             \
  static inline name __hadd(name a, name b) { return a + b; }                                \
  static inline name __hsub(name a, name b) { return a - b; }                                \
  static inline name __hmul(name a, name b) { return a * b; }                                \
  static inline name __hdiv(name a, name b) { return a / b; }                                \
  static inline name __hfma(name a, name b, name c) { return name((double)a * (double)b + (double)c); } \
  static inline name __hneg(name a) { return -a; }                                           \
  static inline name __habs(name a) { a.bits &= 0x7fff; return a; }                          \
  static inline bool __hgt(name a, name b) { return a > b; }                                 \
  static inline bool __hlt(name a, name b) { return a < b; }                                 \
  static inline bool __hge(name a, name b) { return a >= b; }                                \
  static inline bool __hle(name a, name b) { return a <= b; }                                \
  static inline bool __heq(name a, name b) { return a == b; }                                \
  static inline bool __hne(name a, name b) { return a != b; }                                \
  static inline bool __hisnan(name a) { return (float)a != (float)a; }                       \
  static inline name hexp(name a) { return name(expf(a)); }                                  \
  static inline name hexp2(name a) { return name(exp2f(a)); }                                \
  static inline name hlog(name a) { return name(logf(a)); }                                  \
  static inline name hlog2(name a) { return name(log2f(a)); }                                \
  static inline name hsqrt(name a) { return name(sqrt((double)a)); }                         \
  static inline name hrsqrt(name a) { return name(rsqrt((double)a)); }                       \
  static inline name hsin(name a) { return name(sinf(a)); }                                  \
  static inline name hcos(name a) { return name(cosf(a)); }                                  \
  static inline name htanh(name a) { return name(tanhf(a)); }                                \
  static inline name hfloor(name a) { return name(floorf(a)); }                              \
  static inline name hceil(name a) { return name(ceilf(a)); }                                \
  static inline name htrunc(name a) { return name(truncf(a)); }                              \
  static inline name hrint(name a) { return name(rintf(a)); }                                \
  struct __attribute__((aligned(4))) name##2 {                                               \
    name x, y;                                                                               \
    name##2() = default;                                                                     \
    name##2(name x, name y) : x(x), y(y) {}                                                  \
  };

CUDA_ON_CPU_HALF(__nv_bfloat16, cuda_on_cpu_to_bf16, cuda_on_cpu_from_bf16)
CUDA_ON_CPU_HALF(__half, cuda_on_cpu_to_f16, cuda_on_cpu_from_f16)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
typedef __half half;
typedef __half2 half2;
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
static inline float __half2float(__half x) { return x; }
static inline __half __float2half(float x) { return __half(x); }
static inline __half __float2half_rn(float x) { return __half(x); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { __nv_bfloat16 h; h.bits = x; return h; }
static inline __half __ushort_as_half(unsigned short x) { __half h; h.bits = x; return h; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return __nv_bfloat162(x, y); }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
static inline __half2 __floats2half2_rn(float x, float y) { return __half2(x, y); }
static inline __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
static inline __half2 make_half2(__half x, __half y) { return __half2(x, y); }
