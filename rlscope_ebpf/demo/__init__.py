"""The bundled training loop: an actor-critic learns to balance cart-poles. `python -m rlscope_ebpf.demo.train`."""
