"""Parts of GPU kernels: launches, warp reductions, tensor-core fragments, staging through shared memory."""
