"""From a ticket to what is asked of an engine: prompt and seed are functions of the config and the ticket."""

from __future__ import annotations

from functools import lru_cache

from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import Prompt, Task
from gmc_core.training.run_config import RunConfig


class Tickets:
    """Ticket t has prompt t % P of batch t // P (P = `prompts_per_update`): the next ticket is the data cursor."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        self._config, self._task = config, task
        self._batch = lru_cache(maxsize=16)(self._sample)

    def prompt(self, ticket: int) -> Prompt:
        batch, index = divmod(ticket, self._config.prompts_per_update)
        return self._batch(batch)[index]

    def request(self, ticket: int) -> GroupRequest:
        config = self._config
        return GroupRequest(
            ticket=ticket,
            prompt=self.prompt(ticket),
            group_size=config.group_size,
            max_new_tokens=config.response_limit,
            temperature=config.temperature,
            seed=stream_generator(config.seed, "group", ticket).initial_seed(),
        )

    def _sample(self, batch: int) -> list[Prompt]:
        generator = stream_generator(self._config.seed, "prompts", batch)
        return self._task.sample_prompts(self._config.prompts_per_update, generator)
