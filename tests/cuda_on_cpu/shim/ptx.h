// Instructions of PTX that the text has as assembly: assembly.py calls these. The layouts are those of the PTX ISA 8.0,
// 9.7.13.4.8 (mma.m16n8k16), 9.7.13.4.15 (ldmatrix) and 9.7.8.22.3 (cp.async).
#pragma once

// Addresses of shared memory have 32 bits: static memory from 0 on, dynamic memory from here on.
static const unsigned PTX_DYNAMIC = 1u << 30;

static inline unsigned __cvta_generic_to_shared(const void* p) {
  const unsigned char* at = (const unsigned char*)p;
  const cuda_on_cpu::State& s = *cuda_on_cpu_now;
  if (at >= s.shared && at <= s.shared_end) return at - s.shared;
  if (at >= s.dynamic && at <= s.dynamic + s.dynamic_bytes) return PTX_DYNAMIC + (at - s.dynamic);
  cuda_on_cpu_now->fail("an address that is none of shared memory");
  return 0;
}

static inline unsigned char* ptx_shared(unsigned address, unsigned bytes) {
  const cuda_on_cpu::State& s = *cuda_on_cpu_now;
  bool dynamic = address >= PTX_DYNAMIC;
  unsigned at = dynamic ? address - PTX_DYNAMIC : address;
  unsigned long room = dynamic ? s.dynamic_bytes : s.shared_end - s.shared;
  if (at % bytes) cuda_on_cpu_now->fail("an address of shared memory that is not aligned");
  if (at + (unsigned long)bytes > room) cuda_on_cpu_now->fail("an address outside of shared memory");
  return (dynamic ? s.dynamic : s.shared) + at;
}

CUDA_ON_CPU_PART void ptx_copy(unsigned to, const void* from, unsigned bytes, unsigned filled) {
  if (filled > bytes) cuda_on_cpu_now->fail("an asynchronous copy of more than its size");
  unsigned char* shared = ptx_shared(to, bytes);
#ifdef CUDA_ON_CPU_COUNTED
  CUDA_ON_CPU_TELL(from, filled, false);
  CUDA_ON_CPU_TELL(shared, bytes, true);
#endif
  cuda_on_cpu_now->copy(shared, from, bytes, filled);
}
CUDA_ON_CPU_PART void ptx_copy_any(unsigned to, const void* from, unsigned bytes, unsigned filled) {
  if (bytes != 4 && bytes != 8 && bytes != 16) cuda_on_cpu_now->fail("cp.async.ca copies 4, 8 or 16 bytes");
  ptx_copy(to, from, bytes, filled);
}
CUDA_ON_CPU_PART void ptx_copy_16(unsigned to, const void* from, unsigned bytes, unsigned filled) {
  if (bytes != 16) cuda_on_cpu_now->fail("cp.async.cg copies 16 bytes");
  ptx_copy(to, from, bytes, filled);
}
#define PTX_CP_ASYNC(cache, copy)                                                                         \
  CUDA_ON_CPU_INSTRUCTION void ptx_cp_async_##cache##_shared_global(unsigned to, const void* from,        \
                                                                    unsigned bytes, unsigned filled) {    \
    copy(to, from, bytes, filled);                                                                        \
  }                                                                                                       \
  CUDA_ON_CPU_INSTRUCTION void ptx_cp_async_##cache##_shared_global(unsigned to, const void* from,        \
                                                                    unsigned bytes) {                     \
    copy(to, from, bytes, bytes);                                                                         \
  }
PTX_CP_ASYNC(ca, ptx_copy_any)
PTX_CP_ASYNC(cg, ptx_copy_16)
static inline void ptx_cp_async_commit_group() { cuda_on_cpu_now->commit(); }
static inline void ptx_cp_async_wait_group(unsigned left) { cuda_on_cpu_now->wait(left); }
static inline void ptx_cp_async_wait_all() {
  cuda_on_cpu_now->commit();
  cuda_on_cpu_now->wait(0);
}

struct PtxMatrices {
  const unsigned char* row;  // that this lane brings
  unsigned got[4];
  unsigned count;
  bool transposed;
};

CUDA_ON_CPU_UNWATCHED static inline unsigned ptx_half(void** lanes, unsigned matrix, unsigned row, unsigned column) {
  return ((const unsigned short*)((PtxMatrices*)lanes[8 * matrix + row])->row)[column];
}
CUDA_ON_CPU_UNWATCHED static inline void ptx_load_matrices(void** lanes, unsigned group) {
  if (group != 0xffffffffu) cuda_on_cpu_now->fail("ldmatrix of a warp with fewer than 32 threads");
  for (unsigned t = 0; t < 32; t++) {
    PtxMatrices& mine = *(PtxMatrices*)lanes[t];
    for (unsigned m = 0; m < mine.count; m++) {
      unsigned row = t / 4, column = t % 4 * 2, low, high;
      low = mine.transposed ? ptx_half(lanes, m, column, row) : ptx_half(lanes, m, row, column);
      high = mine.transposed ? ptx_half(lanes, m, column + 1, row) : ptx_half(lanes, m, row, column + 1);
      mine.got[m] = low | high << 16;
    }
  }
}
CUDA_ON_CPU_PART PtxMatrices ptx_ldmatrix(unsigned count, bool transposed, unsigned address) {
  PtxMatrices mine = {nullptr, {0, 0, 0, 0}, count, transposed};
  if (cuda_on_cpu_now->lane < 8 * count) {
    mine.row = ptx_shared(address, 16);
    CUDA_ON_CPU_READ(mine.row, 16);
  }
  cuda_on_cpu_now->together(ptx_load_matrices, &mine, 0xffffffffu);
  return mine;
}
#define PTX_LDMATRIX(trans, transposed)                                                                     \
  CUDA_ON_CPU_INSTRUCTION void ptx_ldmatrix_sync_aligned_m8n8_x1##trans##_shared_b16(unsigned& a, unsigned address) { \
    a = ptx_ldmatrix(1, transposed, address).got[0];                                                        \
  }                                                                                                         \
  CUDA_ON_CPU_INSTRUCTION void ptx_ldmatrix_sync_aligned_m8n8_x2##trans##_shared_b16(unsigned& a, unsigned& b,        \
                                                                           unsigned address) {              \
    PtxMatrices m = ptx_ldmatrix(2, transposed, address);                                                   \
    a = m.got[0], b = m.got[1];                                                                             \
  }                                                                                                         \
  CUDA_ON_CPU_INSTRUCTION void ptx_ldmatrix_sync_aligned_m8n8_x4##trans##_shared_b16(                                 \
      unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {                               \
    PtxMatrices m = ptx_ldmatrix(4, transposed, address);                                                   \
    a = m.got[0], b = m.got[1], c = m.got[2], d = m.got[3];                                                 \
  }
PTX_LDMATRIX(, false)
PTX_LDMATRIX(_trans, true)

struct PtxProduct {
  unsigned a[4], b[2];
  float c[4];
};

// A sum of seventeen in f64, cut off to f32 once. The ISA leaves order and rounding open; this is neither the order nor
// the rounding of a chain of fused multiply-adds, so that no test can pass by relying on either.
static inline float ptx_cut(double sum) {
  float x = (float)sum;
  if (__builtin_fabs((double)x) > __builtin_fabs(sum) && !__builtin_isinf(sum)) {
    unsigned bits = __builtin_bit_cast(unsigned, x) - 1;
    x = __builtin_bit_cast(float, bits);
  }
  return x;
}
template <float (*wide)(unsigned short)>
static inline void ptx_multiply(void** lanes, unsigned group) {
  if (group != 0xffffffffu) cuda_on_cpu_now->fail("mma of a warp with fewer than 32 threads");
  float a[16][16], b[16][8];
  for (unsigned t = 0; t < 32; t++) {
    const PtxProduct& mine = *(PtxProduct*)lanes[t];
    for (unsigned i = 0; i < 8; i++)
      a[t / 4 + i / 2 % 2 * 8][t % 4 * 2 + i % 2 + i / 4 * 8] = wide(mine.a[i / 2] >> i % 2 * 16);
    for (unsigned i = 0; i < 4; i++) b[t % 4 * 2 + i % 2 + i / 2 * 8][t / 4] = wide(mine.b[i / 2] >> i % 2 * 16);
  }
  for (unsigned t = 0; t < 32; t++) {
    PtxProduct& mine = *(PtxProduct*)lanes[t];
    for (unsigned i = 0; i < 4; i++) {
      double sum = mine.c[i];
      for (unsigned k = 0; k < 16; k++) sum += (double)a[t / 4 + i / 2 * 8][k] * b[k][t % 4 * 2 + i % 2];
      mine.c[i] = ptx_cut(sum);
    }
  }
}
#define PTX_MMA(kind, wide)                                                                                        \
  static inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_##kind##_##kind##_f32(                              \
      float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, \
      unsigned b1, float c0, float c1, float c2, float c3) {                                                       \
    PtxProduct mine = {{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};                                              \
    cuda_on_cpu_now->together(ptx_multiply<wide>, &mine, 0xffffffffu);                                             \
    d0 = mine.c[0], d1 = mine.c[1], d2 = mine.c[2], d3 = mine.c[3];                                                \
  }
PTX_MMA(bf16, cuda_on_cpu_from_bf16)
PTX_MMA(f16, cuda_on_cpu_from_f16)
