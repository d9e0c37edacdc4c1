# The console: web, worker and beat run from this one image; docker-compose.yml says how.
FROM python:3.11-slim

# Two arenas: glibc gives each thread one of its own, and what a long queue took in each of them stays taken.
ENV MALLOC_ARENA_MAX=2
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /srv/settle

COPY requirements/base.txt requirements/base.txt
RUN pip install --require-hashes --no-deps -r requirements/base.txt

COPY LICENSE manage.py ./
COPY actions actions
COPY agents agents
COPY console console
COPY templates templates

# Static files are part of the image. The values below only let the settings load; none of them is kept.
RUN DATABASE_URL=postgres://build@localhost/build ALLOWED_HOSTS=build \
    SECRET_KEY=only-to-collect-static-files-while-building \
    SECRETS_KEY="$(python -c 'import base64; print(base64.b64encode(bytes(32)).decode())')" \
    AUDIT_SIGNING_KEY="$(python -c 'import base64; print(base64.b64encode(bytes(32)).decode())')" \
    python manage.py collectstatic --noinput \
    && useradd --system --no-create-home settle
USER settle

EXPOSE 8000
CMD ["uvicorn", "console.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--no-server-header", "--no-access-log", "--timeout-graceful-shutdown", "5"]
