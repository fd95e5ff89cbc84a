# docker build -t floeplan . && docker run --rm -v "$PWD/policy.toml:/etc/floeplan/policy.toml:ro" floeplan
FROM python:3.12-slim AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY src ./src
RUN FLOEPLAN_REQUIRE_KERNELS=1 pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 floeplan
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -rf /wheels
USER 10001
WORKDIR /home/floeplan
ENTRYPOINT ["floeplan"]
CMD ["maintain", "--policy", "/etc/floeplan/policy.toml", "--json"]
