// Functions of numbers. IEEE operations have the device's bits; exp, sin and their like come from the C library.
#pragma once

#define CUDA_ON_CPU_LIBM(name)               \
  extern "C" double name(double) noexcept;   \
  extern "C" float name##f(float) noexcept;  \
  static inline float name(float x) { return name##f(x); }
CUDA_ON_CPU_LIBM(exp)
CUDA_ON_CPU_LIBM(exp2)
CUDA_ON_CPU_LIBM(exp10)
CUDA_ON_CPU_LIBM(expm1)
CUDA_ON_CPU_LIBM(log)
CUDA_ON_CPU_LIBM(log2)
CUDA_ON_CPU_LIBM(log10)
CUDA_ON_CPU_LIBM(log1p)
CUDA_ON_CPU_LIBM(sin)
CUDA_ON_CPU_LIBM(cos)
CUDA_ON_CPU_LIBM(tan)
CUDA_ON_CPU_LIBM(asin)
CUDA_ON_CPU_LIBM(acos)
CUDA_ON_CPU_LIBM(atan)
CUDA_ON_CPU_LIBM(sinh)
CUDA_ON_CPU_LIBM(cosh)
CUDA_ON_CPU_LIBM(tanh)
CUDA_ON_CPU_LIBM(asinh)
CUDA_ON_CPU_LIBM(acosh)
CUDA_ON_CPU_LIBM(atanh)
CUDA_ON_CPU_LIBM(erf)
CUDA_ON_CPU_LIBM(erfc)
CUDA_ON_CPU_LIBM(cbrt)
extern "C" double pow(double, double) noexcept;
extern "C" float powf(float, float) noexcept;
extern "C" double fmod(double, double) noexcept;
extern "C" float fmodf(float, float) noexcept;
extern "C" double atan2(double, double) noexcept;
extern "C" float atan2f(float, float) noexcept;
extern "C" double hypot(double, double) noexcept;
extern "C" float hypotf(float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
static inline float pow(float x, float y) { return powf(x, y); }
static inline float fmod(float x, float y) { return fmodf(x, y); }

#define CUDA_ON_CPU_BUILTIN(name)                                          \
  static inline double name(double x) { return __builtin_##name(x); }      \
  static inline float name(float x) { return __builtin_##name##f(x); }     \
  static inline float name##f(float x) { return __builtin_##name##f(x); }
CUDA_ON_CPU_BUILTIN(sqrt)
CUDA_ON_CPU_BUILTIN(floor)
CUDA_ON_CPU_BUILTIN(ceil)
CUDA_ON_CPU_BUILTIN(trunc)
CUDA_ON_CPU_BUILTIN(nearbyint)
CUDA_ON_CPU_BUILTIN(rint)
CUDA_ON_CPU_BUILTIN(round)
CUDA_ON_CPU_BUILTIN(fabs)
static inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
static inline float rsqrtf(float x) { return (float)(1 / __builtin_sqrt((double)x)); }
static inline float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
static inline double copysign(double x, double y) { return __builtin_copysign(x, y); }
static inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }

template <class T>
static inline bool isnan(T x) { return __builtin_isnan(x); }
template <class T>
static inline bool isinf(T x) { return __builtin_isinf(x); }
template <class T>
static inline bool isfinite(T x) { return __builtin_isfinite(x); }

// PTX's min and max: the other one for NaN, and -0 is below +0.
template <class T>
static inline T cuda_on_cpu_max(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return __builtin_signbit(a) ? b : a;
  return a < b ? b : a;
}
template <class T>
static inline T cuda_on_cpu_min(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return __builtin_signbit(a) ? a : b;
  return b < a ? b : a;
}
static inline float max(float a, float b) { return cuda_on_cpu_max(a, b); }
static inline float min(float a, float b) { return cuda_on_cpu_min(a, b); }
static inline double max(double a, double b) { return cuda_on_cpu_max(a, b); }
static inline double min(double a, double b) { return cuda_on_cpu_min(a, b); }
static inline float fmaxf(float a, float b) { return cuda_on_cpu_max(a, b); }
static inline float fminf(float a, float b) { return cuda_on_cpu_min(a, b); }
static inline double fmax(double a, double b) { return cuda_on_cpu_max(a, b); }
static inline double fmin(double a, double b) { return cuda_on_cpu_min(a, b); }
#define CUDA_ON_CPU_ORDERED(type)                                        \
  static inline type max(type a, type b) { return a < b ? b : a; }       \
  static inline type min(type a, type b) { return b < a ? b : a; }
CUDA_ON_CPU_ORDERED(int)
CUDA_ON_CPU_ORDERED(unsigned)
CUDA_ON_CPU_ORDERED(long)
CUDA_ON_CPU_ORDERED(unsigned long)
CUDA_ON_CPU_ORDERED(long long)
CUDA_ON_CPU_ORDERED(unsigned long long)

static inline int abs(int x) { return x < 0 ? -x : x; }
static inline long abs(long x) { return x < 0 ? -x : x; }
static inline long long abs(long long x) { return x < 0 ? -x : x; }
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
static inline long long llabs(long long x) { return x < 0 ? -x : x; }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long)high << 32 | low) << (by & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long)high << 32 | low) >> (by & 31));
}
static inline int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
