"""Another kind of CPU at will: variables under which a process sees AVX2 alone, whatever this machine has."""

AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx2,+fma,+bmi,+bmi2,+f16c",
}
"""For oneDNN, torch's own kernels, MKL (float32 products; it heeds no other of these) and numba."""
