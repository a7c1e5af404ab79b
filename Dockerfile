# docker build -t equitile . && docker run --rm -v "$PWD:/out" equitile generate -p "a red circle moves right" -o /out/circle.mp4
FROM debian:12
COPY . /equitile
RUN /equitile/scripts/run --version
WORKDIR /out
ENTRYPOINT ["/equitile/scripts/run"]
