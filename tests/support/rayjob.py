"""The fields of KubeRay's RayJob (ray.io/v1) that an example may use, their types, and which are required.

Written from KubeRay 1.4's API types, without the fields that no example has any use for. Pod templates are
Kubernetes' own; the models of the package `kubernetes` check them.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Fields(BaseModel):
    """Refuses what the type does not have, and numbers in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True)


class HeadGroup(Fields):
    rayStartParams: dict[str, str]
    template: dict[str, Any]
    serviceType: str | None = None


class WorkerGroup(Fields):
    groupName: str
    minReplicas: int
    maxReplicas: int
    rayStartParams: dict[str, str]
    template: dict[str, Any]
    replicas: int = 0
    numOfHosts: int = 1


class Cluster(Fields):
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup] = []
    rayVersion: str | None = None
    enableInTreeAutoscaling: bool | None = None


class JobSpec(Fields):
    entrypoint: str
    rayClusterSpec: Cluster
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode"] = "K8sJobMode"
    backoffLimit: int = 0
    activeDeadlineSeconds: int | None = Field(None, gt=0)
    runtimeEnvYAML: str | None = None
    shutdownAfterJobFinishes: bool = False
    ttlSecondsAfterFinished: int = 0
    suspend: bool = False


class Metadata(Fields):
    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=47)
    namespace: str | None = None


class RayJob(Fields):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: JobSpec
