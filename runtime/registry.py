"""All built-in kinds of the parts that an experiment chooses from: where the settings of each one are.

This file lies above the parts, and nothing below imports it: `runtime` does, so that the kinds are known before any
part is loaded. A kind's settings say how the part is made. Kinds that are not here are named by import path,
``kind: package.module:Settings`` (docs/design/add-a-part.md). None of these modules may import torch.
"""

from __future__ import annotations

from runtime.experiment.kinds import BUILT_IN_KINDS

BUILT_IN_KINDS["algorithm"] = {
    "ppo": "runtime.learner.settings:PpoSettings",
    "impact": "runtime.learner.settings:ImpactSettings",
    "impala": "runtime.learner.settings:ImpalaSettings",
}
BUILT_IN_KINDS["scaler"] = {
    "fixed": "runtime.scaler.fixed:FixedSettings",
    "nitro": "runtime.scaler.nitro:NitroSettings",
    "schedule": "runtime.scaler.schedule:ScheduleSettings",
    "minions": "runtime.scaler.minions_settings:MinionsSettings",
}
BUILT_IN_KINDS["fleet"] = {
    "auto": "runtime.experiment.fleet:FleetSettings",
    "local": "runtime.fleet.settings:LocalSettings",
    "lambda": "runtime.fleet.settings:LambdaSettings",
    "ray": "runtime.fleet.settings:RaySettings",
}
BUILT_IN_KINDS["learner"] = {
    "instance": "runtime.learner.settings:InstanceSettings",
    "function": "runtime.learner.functions.settings:FunctionSettings",
    "stellaris": "runtime.learner.functions.settings:StellarisSettings",
    "gmi": "runtime.gmi.gmi_settings:GmiSettings",
    "external": "runtime.learner.settings:ExternalSettings",
}
