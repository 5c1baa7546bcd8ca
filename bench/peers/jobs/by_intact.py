"""intact.quantize, for the device, with the precision and with the effort that the setting names."""

from __future__ import annotations

from frame import Job, run

import intact


def quantize(job: Job) -> None:
    device, precision, effort = job.setting.split()
    intact.quantize(job.model, output=job.result, device=device, precision=precision, effort=effort, data=job.data)


run(quantize)
