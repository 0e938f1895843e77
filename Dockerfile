# Three images, for docker, podman and buildah. Nothing is pulled but BASE_IMAGE, any Debian with Python 3.11 or newer:
#   docker build -t ottla .                         broker, controller, operator and command line; `ottla dev` by default
#   docker build --target spark -t ottla-spark .    driver and executors
#   docker build --target etcd -t ottla-etcd .      etcd, etcdctl and etcdutl
#   docker run -p 9092:9092 -v ottla:/data -e OTTLA_TOPICS=orders:3:1 ottla
ARG BASE_IMAGE=python:3.13-slim

# ---- what all of them start from: its layers are stored once on a node
FROM ${BASE_IMAGE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.vendor="Ottla" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data ottla && install -d -o ottla -g ottla /data
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/data USER=ottla
# Bytecode, here of the standard library, where the base has none (python:…-slim): else each start compiles it anew.
RUN python3 -m compileall -q -x '/(dist-packages|ensurepip|idlelib|lib2to3|site-packages|test|tkinter|turtledemo)/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# ---- what it depends on, in the versions that the lock file says (it holds what every extra needs), and then Ottla itself:
# two layers, of which a new version of Ottla changes the small one
FROM ${BASE_IMAGE} AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.lock pyproject.toml docker/dependencies.py /source/
RUN sed -E 's/ *\\$//; /^ +--hash/d' /source/requirements.lock > /constraints.txt && python3 -m venv /opt/ottla

FROM packages AS server-packages
RUN python3 /source/dependencies.py broker operator > /wanted.txt \
 && /opt/ottla/bin/pip install --no-compile -c /constraints.txt -r /wanted.txt \
 && /opt/ottla/bin/pip uninstall --yes pip setuptools \
 && python3 -m compileall -q --invalidation-mode unchecked-hash -x '/(kubernetes|pygments/lexers|tests?)/' \
    /opt/ottla/lib

FROM packages AS spark-packages
RUN python3 /source/dependencies.py spark > /wanted.txt \
 && /opt/ottla/bin/pip install --no-compile -c /constraints.txt -r /wanted.txt \
 && rm -rf /opt/ottla/lib/python3*/site-packages/pyspark/examples \
 && /opt/ottla/bin/pip uninstall --yes pip setuptools

# The compiler is only here: Ottla's one native module is built, and goes on without what built it.
FROM packages AS ottla
RUN headers=$(python3 -c 'import os, sysconfig; print(os.path.exists(sysconfig.get_path("include") + "/Python.h"))') \
 && if ! command -v cc >/dev/null || [ "$headers" = False ]; then \
      apt-get update -q \
      && apt-get install -q -y --no-install-recommends gcc libc6-dev $([ "$headers" = True ] || echo python3-dev) \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb; \
    fi
COPY README.md LICENSE pyspark_ottla.py hatch_build.py /source/
COPY ottla /source/ottla
COPY broker /source/broker
COPY controller /source/controller
COPY operator /source/operator
# Numba keeps a compiled kernel with its source's time, of which layers keep whole seconds only.
RUN OTTLA_NATIVE=require /opt/ottla/bin/pip install --no-compile --no-deps --prefix /own /source \
 && find /own -name '*.py' -exec touch -d '2026-01-01 00:00:00 UTC' {} + \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /own/lib

FROM spark-packages AS kernels
COPY --from=ottla /own /opt/ottla
RUN PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/opt/ottla-kernels \
    /opt/ottla/bin/python -c 'import ottla.spark.kernel, ottla.spark.encode_kernel'

# ---- etcd from its Go module: distributions have older ones, and so has PyPI (3.5.1, which could lose data)
FROM ${BASE_IMAGE} AS etcd-program
ARG GOPROXY=
COPY docker/etcd /source
RUN python3 -m venv /go \
 && /go/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /source/requirements.lock \
 && cd /source \
 && PATH=/go/bin:$PATH GOPROXY="$GOPROXY" GOTOOLCHAIN=local GOFLAGS=-mod=readonly CGO_ENABLED=0 \
    go build -trimpath -buildvcs=false -ldflags '-s -w' -o /etcd .

FROM runtime AS etcd
LABEL org.opencontainers.image.title="Ottla's etcd" \
      org.opencontainers.image.description="etcd, etcdctl and etcdutl for the metadata of Ottla's clusters"
COPY --from=etcd-program /etcd /usr/local/bin/etcd
RUN ln -s etcd /usr/local/bin/etcdctl && ln -s etcd /usr/local/bin/etcdutl
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 2379 2380
ENTRYPOINT ["etcd"]
CMD ["--data-dir", "/data"]

# ---- Spark: a Java runtime unless BASE_IMAGE has one; driver and executors are started by the entrypoint
FROM runtime AS spark
LABEL org.opencontainers.image.title="Ottla for Spark" \
      org.opencontainers.image.description="PySpark on Kubernetes with Ottla's data source and pipelines"
RUN if ! command -v java >/dev/null || ! command -v tini >/dev/null; then \
      apt-get update -q \
      && mkdir -p /usr/share/man/man1 \
      && apt-get install -q -y --no-install-recommends default-jre-headless tini \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb; \
    fi
COPY --from=spark-packages /opt/ottla /opt/ottla
COPY --from=ottla /own /opt/ottla
COPY --from=kernels /opt/ottla-kernels /opt/ottla-kernels
COPY docker/spark/entrypoint.py docker/spark/job.py /opt/spark/
RUN mkdir -p /opt/spark/conf
# The root file system may be read-only: what Spark, its workers and numba write goes to /tmp.
ENV PATH=/opt/ottla/bin:$PATH PYSPARK_PYTHON=/opt/ottla/bin/python PYSPARK_DRIVER_PYTHON=/opt/ottla/bin/python \
    NUMBA_CACHE_DIR=/tmp/ottla-kernels HOME=/tmp
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["tini", "-s", "--", "/opt/ottla/bin/python", "/opt/spark/entrypoint.py"]

# ---- the broker's, which is the controller's and the operator's too; the last one is what a build without a target makes
FROM runtime AS broker
LABEL org.opencontainers.image.title="Ottla" \
      org.opencontainers.image.description="Apache Kafka's system in Python: broker, controller, operator, command line"
COPY --from=server-packages /opt/ottla /opt/ottla
COPY --from=ottla /own /opt/ottla
ENV PATH=/opt/ottla/bin:$PATH OTTLA_DEV_DATA=/data OTTLA_DEV_LISTEN=0.0.0.0
USER 10001:10001
VOLUME /data
EXPOSE 9092
ENTRYPOINT ["ottla"]
CMD ["dev"]
