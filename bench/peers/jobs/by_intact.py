"""intact.quantize: uint8, for the device and with the effort that the setting names."""

from __future__ import annotations

from frame import Job, run

import intact


def quantize(job: Job) -> None:
    device, effort = job.setting.split()
    intact.quantize(job.model, output=job.result, device=device, precision="uint8", effort=effort, data=job.data)


run(quantize)
