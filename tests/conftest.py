"""Eight CPU devices, so that every test may use a real mesh."""

from __future__ import annotations

import jax

jax.config.update("jax_num_cpu_devices", 8)
