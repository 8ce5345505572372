"""A script that joins the cluster which its environment names, and says where it is in it."""

import jax

import estimator as est

cluster = est.distributed.initialize(initialization_timeout_secs=60)
print("place", jax.process_index(), jax.process_count(), cluster.role, cluster.process_id)
