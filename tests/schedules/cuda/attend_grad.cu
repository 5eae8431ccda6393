
#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
  using cuda::std::uint8_t;
  using cuda::std::uint16_t;
  using cuda::std::uint32_t;
  using cuda::std::uint64_t;
  using cuda::std::int8_t;
  using cuda::std::int16_t;
  using cuda::std::int32_t;
  using cuda::std::int64_t;


  // NVRTC uses asm/volatile instead of __asm__/__volatile__ (gcc extension).
  #ifndef __asm__
  #define __asm__ asm
  #endif
  #ifndef __volatile__
  #define __volatile__ volatile
  #endif
#else
  #include <cstdint>
  #include <type_traits>
  #include <cuda.h>
#endif

#if (((__CUDACC_VER_MAJOR__ == 11) && (__CUDACC_VER_MINOR__ >= 4)) || \
     (__CUDACC_VER_MAJOR__ > 11))
#define TVM_ENABLE_L2_PREFETCH 1
#else
#define TVM_ENABLE_L2_PREFETCH 0
#endif

#ifdef _WIN32
  using uint = unsigned int;
  using uchar = unsigned char;
  using ushort = unsigned short;
  using int64_t = long long;
  using uint64_t = unsigned long long;
#else
  #define uint unsigned int
  #define uchar unsigned char
  #define ushort unsigned short
#endif
static __device__ float f32_exp(float x0) {
  const float m0 = fmaf(x0, 1.44269502f, 12582912.0f);
  const float m1 = (m0 - 12582912.0f);
  const float m2 = fmaf(m1, -0.693147182f, x0);
  const float m3 = fmaf(m1, 1.90465421e-09f, m2);
  const float m4 = fmaf(0.00138131424f, m3, 0.00836941879f);
  const float m5 = fmaf(m4, m3, 0.041668456f);
  const float m6 = fmaf(m5, m3, 0.166665152f);
  const float m7 = fmaf(m6, m3, 0.49999994f);
  const int m8 = __float_as_int(m0);
  const int m9 = (int)((unsigned int)(m8) << (unsigned int)(23));
  const float m10 = (m3 * m3);
  const float m11 = (m3 + 1.0f);
  const float m12 = fmaf(m10, m7, m11);
  const int m13 = __float_as_int(m12);
  const float m14 = __int_as_float((int)((unsigned int)(m13) + (unsigned int)(m9)));
  const float m15 = ((x0 < -87.3365402f) ? 0.0f : m14);
  const float m16 = (x0 + __int_as_float(2139095040));
  const float m17 = ((x0 <= 88.7228317f) ? m15 : m16);
  return m17;
}
extern "C" __global__ void __launch_bounds__(256) attend_grad_kernel_1(float* __restrict__ along_ptr, float* __restrict__ dk_ptr, float* __restrict__ dv_ptr, float* __restrict__ lv200_ptr, float* __restrict__ lv205_ptr, float* __restrict__ lv210_ptr, float* __restrict__ lv298_ptr, float* __restrict__ top_ptr, float* __restrict__ whole_ptr) {
  __shared__ alignas(64) float scores_turned_ptr[256];
  __shared__ alignas(64) float dweights_turned_ptr[256];
  __shared__ alignas(64) float left_ptr[256];
  alignas(64) float sums_ptr[4];
  alignas(64) float next_ptr[4];
  __shared__ alignas(64) float tile_ptr[1148];
  alignas(64) float left_ptr_1[16];
  alignas(64) float right_ptr[1];
  alignas(64) float x_ptr[1];
  alignas(64) float x_ptr_1[1];
  alignas(64) float sums_ptr_1[4];
  alignas(64) float next_ptr_1[4];
  alignas(64) float left_ptr_2[16];
  alignas(64) float right_ptr_1[1];
  alignas(64) float x_ptr_2[1];
  alignas(64) float sums_ptr_2[4];
  alignas(64) float next_ptr_2[4];
  alignas(64) float left_ptr_3[16];
  alignas(64) float right_ptr_2[1];
  alignas(64) float sums_ptr_3[4];
  alignas(64) float next_ptr_3[4];
  alignas(64) float left_ptr_4[16];
  alignas(64) float right_ptr_3[1];
  if (((int)threadIdx.x) < 192) {
    scores_turned_ptr[((((((int)threadIdx.x) / 24) * 32) + (((int)threadIdx.x) % 24)) + 8)] = 0x0p+0f/*0.000000e+00*/;
  }
  if (((int)threadIdx.x) < 192) {
    dweights_turned_ptr[((((((int)threadIdx.x) / 24) * 32) + (((int)threadIdx.x) % 24)) + 8)] = 0x0p+0f/*0.000000e+00*/;
  }
  if ((((int)threadIdx.x) & 31) < 12) {
    left_ptr[((int)threadIdx.x)] = lv205_ptr[(((((int)blockIdx.x) * 96) + ((((int)threadIdx.x) >> 5) * 12)) + (((int)threadIdx.x) & 31))];
  } else {
    left_ptr[((int)threadIdx.x)] = 0x0p+0f/*0.000000e+00*/;
  }
  __syncthreads();
  #pragma unroll
  for (int e = 0; e < 4; ++e) {
    sums_ptr[e] = 0x0p+0f/*0.000000e+00*/;
  }
  *(float4*)(next_ptr + 0) = make_float4(-0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/);
  if ((((int)threadIdx.x) < 59) && ((((int)threadIdx.x) & 7) < 3)) {
    *(float4*)(next_ptr + 0) = *(float4*)(lv200_ptr + (((((int)blockIdx.x) * 96) + ((((int)threadIdx.x) >> 3) * 12)) + ((((int)threadIdx.x) & 7) * 4)));
  }
  tile_ptr[(((((int)threadIdx.x) & 7) * 144) + (((int)threadIdx.x) >> 3))] = next_ptr[0];
  tile_ptr[((((((int)threadIdx.x) & 7) * 144) + (((int)threadIdx.x) >> 3)) + 36)] = next_ptr[1];
  tile_ptr[((((((int)threadIdx.x) & 7) * 144) + (((int)threadIdx.x) >> 3)) + 72)] = next_ptr[2];
  tile_ptr[((((((int)threadIdx.x) & 7) * 144) + (((int)threadIdx.x) >> 3)) + 108)] = next_ptr[3];
  __syncthreads();
  if (((int)threadIdx.x) < 64) {
    #pragma unroll
    for (int k = 0; k < 8; ++k) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        *(float4*)(left_ptr_1 + (i * 4)) = *(float4*)(left_ptr + ((((((int)threadIdx.x) >> 5) * 128) + (i * 32)) + (k * 4)));
      }
      #pragma unroll
      for (int q = 0; q < 4; ++q) {
        right_ptr[0] = tile_ptr[(((k * 144) + (q * 36)) + (((int)threadIdx.x) & 31))];
        #pragma unroll
        for (int i_1 = 0; i_1 < 4; ++i_1) {
          sums_ptr[i_1] = fmaf(left_ptr_1[((i_1 * 4) + q)], right_ptr[0], sums_ptr[i_1]);
        }
      }
    }
  }
  __syncthreads();
  #pragma unroll
  for (int i_2 = 0; i_2 < 4; ++i_2) {
    if ((((int)threadIdx.x) < 40) && ((((int)threadIdx.x) & 31) < 8)) {
      scores_turned_ptr[((((((int)threadIdx.x) >> 5) * 128) + (i_2 * 32)) + (((int)threadIdx.x) & 31))] = sums_ptr[i_2];
    }
  }
  __syncthreads();
  if (((int)threadIdx.x) < 64) {
    float condval;
    if ((((int)threadIdx.x) >> 3) <= (((int)threadIdx.x) & 7)) {
      condval = (scores_turned_ptr[(((((int)threadIdx.x) >> 3) * 32) + (((int)threadIdx.x) & 7))] * 0x1.279a74590331dp-2f/*2.886751e-01*/);
    } else {
      condval = -0x1.93e5939a08ceap+99f/*-1.000000e+30*/;
    }
    x_ptr[0] = f32_exp((condval - top_ptr[((((int)blockIdx.x) * 8) + (((int)threadIdx.x) & 7))]));
    scores_turned_ptr[(((((int)threadIdx.x) >> 3) * 32) + (((int)threadIdx.x) & 7))] = x_ptr[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) < 64) {
    x_ptr_1[0] = (scores_turned_ptr[(((((int)threadIdx.x) >> 3) * 32) + (((int)threadIdx.x) & 7))] / whole_ptr[((((int)blockIdx.x) * 8) + (((int)threadIdx.x) & 7))]);
    scores_turned_ptr[(((((int)threadIdx.x) >> 3) * 32) + (((int)threadIdx.x) & 7))] = x_ptr_1[0];
  }
  __syncthreads();
  if ((((int)threadIdx.x) & 31) < 12) {
    left_ptr[((int)threadIdx.x)] = lv210_ptr[(((((int)blockIdx.x) * 96) + ((((int)threadIdx.x) >> 5) * 12)) + (((int)threadIdx.x) & 31))];
  } else {
    left_ptr[((int)threadIdx.x)] = 0x0p+0f/*0.000000e+00*/;
  }
  __syncthreads();
  #pragma unroll
  for (int e_1 = 0; e_1 < 4; ++e_1) {
    sums_ptr_1[e_1] = 0x0p+0f/*0.000000e+00*/;
  }
  *(float4*)(next_ptr_1 + 0) = make_float4(-0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/);
  if ((((int)threadIdx.x) < 59) && ((((int)threadIdx.x) & 7) < 3)) {
    *(float4*)(next_ptr_1 + 0) = *(float4*)(lv298_ptr + (((((int)blockIdx.x) * 96) + ((((int)threadIdx.x) >> 3) * 12)) + ((((int)threadIdx.x) & 7) * 4)));
  }
  tile_ptr[(((((int)threadIdx.x) & 7) * 144) + (((int)threadIdx.x) >> 3))] = next_ptr_1[0];
  tile_ptr[((((((int)threadIdx.x) & 7) * 144) + (((int)threadIdx.x) >> 3)) + 36)] = next_ptr_1[1];
  tile_ptr[((((((int)threadIdx.x) & 7) * 144) + (((int)threadIdx.x) >> 3)) + 72)] = next_ptr_1[2];
  tile_ptr[((((((int)threadIdx.x) & 7) * 144) + (((int)threadIdx.x) >> 3)) + 108)] = next_ptr_1[3];
  __syncthreads();
  if (((int)threadIdx.x) < 64) {
    #pragma unroll
    for (int k_1 = 0; k_1 < 8; ++k_1) {
      #pragma unroll
      for (int i_3 = 0; i_3 < 4; ++i_3) {
        *(float4*)(left_ptr_2 + (i_3 * 4)) = *(float4*)(left_ptr + ((((((int)threadIdx.x) >> 5) * 128) + (i_3 * 32)) + (k_1 * 4)));
      }
      #pragma unroll
      for (int q_1 = 0; q_1 < 4; ++q_1) {
        right_ptr_1[0] = tile_ptr[(((k_1 * 144) + (q_1 * 36)) + (((int)threadIdx.x) & 31))];
        #pragma unroll
        for (int i_4 = 0; i_4 < 4; ++i_4) {
          sums_ptr_1[i_4] = fmaf(left_ptr_2[((i_4 * 4) + q_1)], right_ptr_1[0], sums_ptr_1[i_4]);
        }
      }
    }
  }
  __syncthreads();
  #pragma unroll
  for (int i_5 = 0; i_5 < 4; ++i_5) {
    if ((((int)threadIdx.x) < 40) && ((((int)threadIdx.x) & 31) < 8)) {
      dweights_turned_ptr[((((((int)threadIdx.x) >> 5) * 128) + (i_5 * 32)) + (((int)threadIdx.x) & 31))] = sums_ptr_1[i_5];
    }
  }
  __syncthreads();
  if (((int)threadIdx.x) < 64) {
    float condval_1;
    if ((((int)threadIdx.x) >> 3) <= (((int)threadIdx.x) & 7)) {
      condval_1 = (scores_turned_ptr[(((((int)threadIdx.x) >> 3) * 32) + (((int)threadIdx.x) & 7))] * (dweights_turned_ptr[(((((int)threadIdx.x) >> 3) * 32) + (((int)threadIdx.x) & 7))] - along_ptr[((((int)blockIdx.x) * 8) + (((int)threadIdx.x) & 7))]));
    } else {
      condval_1 = 0x0p+0f/*0.000000e+00*/;
    }
    x_ptr_2[0] = (condval_1 * 0x1.279a74590331dp-2f/*2.886751e-01*/);
    dweights_turned_ptr[(((((int)threadIdx.x) >> 3) * 32) + (((int)threadIdx.x) & 7))] = x_ptr_2[0];
  }
  __syncthreads();
  #pragma unroll
  for (int e_2 = 0; e_2 < 4; ++e_2) {
    sums_ptr_2[e_2] = 0x0p+0f/*0.000000e+00*/;
  }
  *(float4*)(next_ptr_2 + 0) = make_float4(-0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/);
  if (((((int)threadIdx.x) & 7) < 3) && (((int)threadIdx.x) < 64)) {
    *(float4*)(next_ptr_2 + 0) = *(float4*)(lv200_ptr + (((((int)blockIdx.x) * 96) + ((((int)threadIdx.x) >> 3) * 12)) + ((((int)threadIdx.x) & 7) * 4)));
  }
  *(float4*)(tile_ptr + (((int)threadIdx.x) * 4)) = *(float4*)(next_ptr_2 + 0);
  __syncthreads();
  if (((int)threadIdx.x) < 64) {
    #pragma unroll
    for (int k_2 = 0; k_2 < 8; ++k_2) {
      #pragma unroll
      for (int i_6 = 0; i_6 < 4; ++i_6) {
        *(float4*)(left_ptr_3 + (i_6 * 4)) = *(float4*)(dweights_turned_ptr + ((((((int)threadIdx.x) >> 5) * 128) + (i_6 * 32)) + (k_2 * 4)));
      }
      #pragma unroll
      for (int q_2 = 0; q_2 < 4; ++q_2) {
        right_ptr_2[0] = tile_ptr[(((k_2 * 128) + (q_2 * 32)) + (((int)threadIdx.x) & 31))];
        #pragma unroll
        for (int i_7 = 0; i_7 < 4; ++i_7) {
          sums_ptr_2[i_7] = fmaf(left_ptr_3[((i_7 * 4) + q_2)], right_ptr_2[0], sums_ptr_2[i_7]);
        }
      }
    }
  }
  __syncthreads();
  #pragma unroll
  for (int i_8 = 0; i_8 < 4; ++i_8) {
    if ((((int)threadIdx.x) < 44) && ((((int)threadIdx.x) & 31) < 12)) {
      dk_ptr[((((((int)blockIdx.x) * 96) + ((((int)threadIdx.x) >> 5) * 48)) + (i_8 * 12)) + (((int)threadIdx.x) & 31))] = sums_ptr_2[i_8];
    }
  }
  __syncthreads();
  #pragma unroll
  for (int e_3 = 0; e_3 < 4; ++e_3) {
    sums_ptr_3[e_3] = 0x0p+0f/*0.000000e+00*/;
  }
  *(float4*)(next_ptr_3 + 0) = make_float4(-0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/, -0x0p+0f/*-0.000000e+00*/);
  if (((((int)threadIdx.x) & 7) < 3) && (((int)threadIdx.x) < 64)) {
    *(float4*)(next_ptr_3 + 0) = *(float4*)(lv298_ptr + (((((int)blockIdx.x) * 96) + ((((int)threadIdx.x) >> 3) * 12)) + ((((int)threadIdx.x) & 7) * 4)));
  }
  *(float4*)(tile_ptr + (((int)threadIdx.x) * 4)) = *(float4*)(next_ptr_3 + 0);
  __syncthreads();
  if (((int)threadIdx.x) < 64) {
    #pragma unroll
    for (int k_3 = 0; k_3 < 8; ++k_3) {
      #pragma unroll
      for (int i_9 = 0; i_9 < 4; ++i_9) {
        *(float4*)(left_ptr_4 + (i_9 * 4)) = *(float4*)(scores_turned_ptr + ((((((int)threadIdx.x) >> 5) * 128) + (i_9 * 32)) + (k_3 * 4)));
      }
      #pragma unroll
      for (int q_3 = 0; q_3 < 4; ++q_3) {
        right_ptr_3[0] = tile_ptr[(((k_3 * 128) + (q_3 * 32)) + (((int)threadIdx.x) & 31))];
        #pragma unroll
        for (int i_10 = 0; i_10 < 4; ++i_10) {
          sums_ptr_3[i_10] = fmaf(left_ptr_4[((i_10 * 4) + q_3)], right_ptr_3[0], sums_ptr_3[i_10]);
        }
      }
    }
  }
  __syncthreads();
  #pragma unroll
  for (int i_11 = 0; i_11 < 4; ++i_11) {
    if ((((int)threadIdx.x) < 44) && ((((int)threadIdx.x) & 31) < 12)) {
      dv_ptr[((((((int)blockIdx.x) * 96) + ((((int)threadIdx.x) >> 5) * 48)) + (i_11 * 12)) + (((int)threadIdx.x) & 31))] = sums_ptr_3[i_11];
    }
  }
  __syncthreads();
}

