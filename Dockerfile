# The broker's image: `ottla dev` by default; `ottla broker --config …` or any other command of `ottla` behind the name.
#   docker build -t ottla .        (podman and buildah build it too)
#   docker run -p 9092:9092 -v ottla:/data -e OTTLA_TOPICS=orders:3:1 ottla
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
COPY requirements.lock pyproject.toml README.md LICENSE pyspark_ottla.py /source/
COPY ottla /source/ottla
COPY broker /source/broker
COPY controller /source/controller
# The lock file holds what every extra needs; here it only says which versions.
RUN sed -E 's/ *\\$//; /^ +--hash/d' /source/requirements.lock > /constraints.txt \
 && python3 -m venv /opt/ottla \
 && /opt/ottla/bin/pip install --no-cache-dir --disable-pip-version-check -c /constraints.txt "/source[broker]" \
 && /opt/ottla/bin/pip uninstall --yes pip setuptools \
 && find /opt/ottla -name __pycache__ -prune -exec rm -r {} +

FROM ${BASE_IMAGE} AS broker
LABEL org.opencontainers.image.title="Ottla" \
      org.opencontainers.image.description="Apache Kafka's system in Python: the broker" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/ottla /opt/ottla
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data ottla && install -d -o ottla -g ottla /data
ENV PATH=/opt/ottla/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/data USER=ottla \
    OTTLA_DEV_DATA=/data OTTLA_DEV_LISTEN=0.0.0.0
USER 10001:10001
VOLUME /data
EXPOSE 9092
ENTRYPOINT ["ottla"]
CMD ["dev"]
