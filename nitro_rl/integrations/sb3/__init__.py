"""stable-baselines3's algorithms with the actors of an `ActorPool`; see docs/guides/stable-baselines3.md."""

try:
    import stable_baselines3 as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"nitro_rl.integrations.sb3 needs stable-baselines3: pip install 'nitro-rl[sb3]' ({error})"
    ) from error

from nitro_rl.integrations.sb3.attaching import attach as attach
from nitro_rl.integrations.sb3.environments import PoolEnv as PoolEnv
