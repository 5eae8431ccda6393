// Accesses of one launch that nothing orders: of two threads to one byte, of which one at least is a write.
//
// A barrier orders the threads of a block, __syncwarp the lanes of its mask, and nothing the blocks of a launch. A
// shuffle, a vote and ldmatrix order no memory (CUDA C++ Programming Guide, 10.22). Kernels that compile.py watches tell
// each load and store. Which order the threads are taken in makes no difference to what is found, so that launches in
// another than the forward order are not looked at.
#pragma once

namespace cuda_on_cpu {

void races_launch();
void races_block();
void races_barrier();
// Lanes of the warp whose first thread is ``first`` meet in __syncwarp.
void races_meet(unsigned first, unsigned group);
// Null, or what another thread did there that is not ordered with this. ``shared``: a block's own memory.
const char* races_access(const void* at, unsigned bytes, bool write, unsigned thread, bool shared);

}  // namespace cuda_on_cpu
