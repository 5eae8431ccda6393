#pragma once
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_INF_FP16 __half(__builtin_inff())
#define CUDART_NAN_FP16 __half(__builtin_nanf(""))
#define CUDART_INF_BF16 __nv_bfloat16(__builtin_inff())
#define CUDART_NAN_BF16 __nv_bfloat16(__builtin_nanf(""))
