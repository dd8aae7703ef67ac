"""The probe of a weight update: one response whose log-probs every engine must agree on with the learner."""

from __future__ import annotations

import torch
from torch import Tensor

from gmc_core.rollouts.policy import Policy, response_log_probs
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.workers.messages import Probe
from gmc_core.training.session import Session

PROBE_TOKENS = 64  # enough to touch every weight, cheap beside a rollout


class WeightProbe:
    """A fixed response, sampled once; `now()` is the probe of the policy as it is then."""

    def __init__(self, session: Session) -> None:
        config, self._policy = session.config, session.policy
        self._tolerance = config.probe_limit
        (group,) = session.engine.generate(
            session.task.sample_prompts(1, stream_generator(config.seed, "probe prompt")),
            group_size=1,
            max_new_tokens=min(PROBE_TOKENS, config.response_limit),
            temperature=1.0,
            generator=stream_generator(config.seed, "probe", 0, config.device),
        )
        self._prompt_L: Tensor = group.prompt_tokens_L
        self._response_T: Tensor = group.response_GT[0][group.mask_GT[0]]

    def now(self) -> Probe:
        """FloatingPointError when the learner's own log-probs are not finite."""
        logp_T = log_probs(self._policy, self._prompt_L, self._response_T)
        if not bool(torch.isfinite(logp_T).all()):
            raise FloatingPointError(
                "the trained model gives log-probs that are not finite: its weights are broken. Resume from the last "
                "checkpoint with a smaller learning_rate or a gradient_clip"
            )
        return Probe(self._prompt_L.cpu(), self._response_T.cpu(), logp_T.cpu(), self._tolerance)


@torch.no_grad()
def log_probs(policy: Policy, prompt_L: Tensor, response_T: Tensor) -> Tensor:
    """(T,) fp32 log-probs of one response at temperature 1."""
    index_1 = torch.zeros(1, dtype=torch.long, device=policy.device)
    mask_1L = torch.ones((1, len(prompt_L)), dtype=torch.bool, device=policy.device)
    return response_log_probs(policy.model, prompt_L[None], mask_1L, response_T[None], index_1, share_prefix=False)[0]
