"""The benchmarks, one module each; what they share stands above."""
