"""Eight CPU devices, so that every test may use a real mesh; and no test depends on the clock."""

from __future__ import annotations

import os

import hypothesis
import jax

# Addresses of buckets go through fsspec, whether TensorFlow is installed or not.
os.environ["EPATH_USE_TF"] = "0"
jax.config.update("jax_num_cpu_devices", 8)

# A busy machine is no mistake of what is tested.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
