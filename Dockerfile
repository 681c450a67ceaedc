# The harness on vLLM's own image, which keeps its torch:
#   docker build --build-arg VLLM=v0.33.0 -t mla-harness .
#   docker run --rm --gpus all --ipc host -v "$PWD/reports:/work/reports" mla-harness survey vllm
ARG VLLM=latest
FROM vllm/vllm-openai:${VLLM}
WORKDIR /opt/mla-harness
COPY . .
RUN python3 -m pip freeze | grep -iE '^(torch|triton|nvidia|flashinfer|vllm)[^@]*==' > /tmp/engine.txt \
    && python3 -m pip install --no-cache-dir -c /tmp/engine.txt '.[accuracy,reports]'
WORKDIR /work
ENTRYPOINT ["mla-harness"]
CMD ["doctor"]
