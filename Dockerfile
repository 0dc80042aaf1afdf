# hornbook in a container, for `hornbook launch --on k8s --image NAME` and for `docker run`:
#
#   docker build -t NAME .                                                 for GPUs: pip's usual torch for Linux brings CUDA
#   docker build -t NAME --build-arg TORCH_INDEX=ADDRESS .                 for CPUs: ADDRESS is torch's index of CPU builds
#   docker build -t NAME --build-arg BASE=IMAGE --build-arg PACKAGES= .    on another image
#
# BASE needs Python 3.11 to 3.14 with venv; without PACKAGES, it need not be a Debian. The build downloads packages; the
# container needs no network. CI does not build this image; tests/test_dockerfile.py checks the file.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ARG TORCH_INDEX=""
ARG EXTRAS="hf"
WORKDIR /source
COPY constraints.txt ./
RUN python3 -m venv /opt/hornbook && /opt/hornbook/bin/pip install --no-cache-dir -c constraints.txt --upgrade pip
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/hornbook/bin/pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ".[$EXTRAS]"

FROM ${BASE}
# torch.compile needs a compiler; training without it does not.
ARG PACKAGES="g++"
RUN if [ -n "$PACKAGES" ]; then \
      apt-get update && apt-get install --yes --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; \
    fi
# The owner of a run's files on shared volumes.
ARG USER_ID=1000
RUN useradd --create-home --non-unique --uid "$USER_ID" hornbook
COPY --from=build /opt/hornbook /opt/hornbook
ENV PATH="/opt/hornbook/bin:$PATH" HF_HUB_OFFLINE=1
USER ${USER_ID}
WORKDIR /home/hornbook
CMD ["hornbook", "--help"]
