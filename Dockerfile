# The service in an image: docker build -t fleetgate . (docs/deploy.md)
#
# The first stage compiles the core; the second has Python, the packages and a user without rights. It needs no compiler,
# no shell and no writable folder but /var/lib/fleetgate.

FROM python:3.13-slim-bookworm AS build
# Debian removes old versions of a package from its servers, so a pinned one would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /sources
RUN python -m venv --without-pip /opt/fleetgate
COPY constraints.txt pyproject.toml setup.py README.md LICENSE ./
COPY src src
ARG VERSION=
RUN FLEETGATE_VERSION="$VERSION" FLEETGATE_COMPILE=1 python -m pip --python /opt/fleetgate/bin/python install \
    --no-cache-dir --constraint constraints.txt '.[serve,postgres,notify,otel]'

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="Fleetgate" \
    org.opencontainers.image.description="Admission control for fleets of AI agents" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.source="https://github.com/fleetgate/fleetgate"
RUN groupadd --gid 10001 fleetgate \
    && useradd --uid 10001 --gid fleetgate --home-dir /var/lib/fleetgate --no-create-home --shell /usr/sbin/nologin fleetgate \
    && install --directory --owner fleetgate --group fleetgate --mode 0700 /var/lib/fleetgate
COPY --from=build /opt/fleetgate /opt/fleetgate
ENV PATH="/opt/fleetgate/bin:$PATH" \
    HOME=/var/lib/fleetgate \
    FLEETGATE_HOME=/var/lib/fleetgate \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /var/lib/fleetgate
EXPOSE 4180
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:4180/readyz', timeout=4)"]
ENTRYPOINT ["fleetgate"]
CMD ["serve", "--host", "0.0.0.0"]
