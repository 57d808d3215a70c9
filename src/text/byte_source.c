/* SPDX-License-Identifier: Apache-2.0 */
#include "text/byte_source.h"

#include "base/file.h"
#include "base/memory.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { CHUNK = 1 << 17 };
/* Text compresses three- to tenfold. A file that expands to more than 1 GiB and 200 times its size is not text; reading
 * it would only fill the memory. */
#define SUSPICIOUS_SIZE ((int64_t)1 << 30)
#define SUSPICIOUS_RATIO 200

typedef enum compression { UNCOMPRESSED, GZIP, ZSTD } compression;

struct fp_byte_source {
	fp_context *ctx;
	char *path;
	FILE *file;
	compression compression;
	char *input; /* a buffer of CHUNK bytes from the file */
	int64_t input_used, input_size, total_in, total_out;
	bool at_end; /* of the file */
	bool inside; /* within a gzip member or a zstd frame */
	bool inflate_open;
	z_stream inflate;
	ZSTD_DStream *zstd;
};

static fp_status refill(fp_byte_source *source)
{
	source->input_used = 0;
	source->input_size = (int64_t)fread(source->input, 1, CHUNK, source->file);
	if (ferror(source->file))
		return fp_fail(source->ctx, FP_ERROR_INPUT, "%s: cannot be read: %s", source->path, strerror(errno));
	source->total_in += source->input_size;
	source->at_end = source->input_size == 0;
	return FP_OK;
}

static fp_status start_decompression(fp_byte_source *source)
{
	const unsigned char *first = (const unsigned char *)source->input;
	if (source->input_size >= 2 && first[0] == 0x1F && first[1] == 0x8B) {
		source->compression = GZIP;
		source->inflate_open = inflateInit2(&source->inflate, 15 + 16) == Z_OK;
		if (!source->inflate_open)
			return fp_fail(source->ctx, FP_ERROR_MEMORY, "%s: out of memory for gzip", source->path);
		source->inside = true;
	} else if (source->input_size >= 4 && memcmp(first, "\x28\xB5\x2F\xFD", 4) == 0) {
		source->compression = ZSTD;
		source->zstd = ZSTD_createDStream();
		if (!source->zstd)
			return fp_fail(source->ctx, FP_ERROR_MEMORY, "%s: out of memory for zstd", source->path);
		source->inside = true;
	}
	return FP_OK;
}

fp_status fp_byte_source_open(fp_byte_source **out, fp_context *ctx, const char *path)
{
	fp_status status = FP_OK;
	fp_byte_source *source = NULL;
	*out = NULL;
	FP_TRY(fp_check_path(ctx, path));
	FP_TRY(FP_NEW(ctx, &source, 1));
	source->ctx = ctx;
	FP_TRY(fp_copy_text(ctx, &source->path, path));
	FP_TRY(FP_NEW(ctx, &source->input, CHUNK));
	source->file = fopen(path, "rb");
	if (!source->file) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
		goto cleanup;
	}
	FP_TRY(refill(source));
	FP_TRY(start_decompression(source));
	*out = source;
	source = NULL;
cleanup:
	fp_byte_source_close(source);
	return status;
}

void fp_byte_source_close(fp_byte_source *source)
{
	if (!source)
		return;
	if (source->inflate_open)
		inflateEnd(&source->inflate);
	ZSTD_freeDStream(source->zstd);
	if (source->file)
		fclose(source->file);
	fp_free(source->input);
	fp_free(source->path);
	fp_free(source);
}

static fp_status inflate_gzip(fp_byte_source *source, char *buffer, int64_t size, int64_t *got)
{
	z_stream *stream = &source->inflate;
	if (!source->inside) { /* the next member */
		inflateReset(stream);
		source->inside = true;
	}
	stream->next_in = (unsigned char *)source->input + source->input_used;
	stream->avail_in = (unsigned)(source->input_size - source->input_used);
	stream->next_out = (unsigned char *)buffer;
	stream->avail_out = (unsigned)size;
	int result = inflate(stream, Z_NO_FLUSH);
	if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
		return fp_fail(source->ctx, FP_ERROR_INPUT, "%s: damaged gzip data near byte %lld: %s", source->path,
					   (long long)(source->total_in - stream->avail_in), stream->msg ? stream->msg : zError(result));
	source->inside = result != Z_STREAM_END;
	source->input_used = source->input_size - stream->avail_in;
	*got = size - stream->avail_out;
	return FP_OK;
}

static fp_status inflate_zstd(fp_byte_source *source, char *buffer, int64_t size, int64_t *got)
{
	ZSTD_inBuffer input = {source->input, (size_t)source->input_size, (size_t)source->input_used};
	ZSTD_outBuffer output = {buffer, (size_t)size, 0};
	size_t result = ZSTD_decompressStream(source->zstd, &output, &input);
	if (ZSTD_isError(result))
		return fp_fail(source->ctx, FP_ERROR_INPUT, "%s: damaged zstd data near byte %lld: %s", source->path,
					   (long long)(source->total_in - source->input_size + (int64_t)input.pos),
					   ZSTD_getErrorName(result));
	source->inside = result != 0;
	source->input_used = (int64_t)input.pos;
	*got = (int64_t)output.pos;
	return FP_OK;
}

static fp_status check_ratio(fp_byte_source *source, int64_t got)
{
	source->total_out += got;
	if (source->total_out > SUSPICIOUS_SIZE && source->total_out / SUSPICIOUS_RATIO > source->total_in)
		return fp_fail(
			source->ctx, FP_ERROR_INPUT,
			"%s: expands to more than %d times its size, which text does not; decompress it by hand if that is right",
			source->path, SUSPICIOUS_RATIO);
	return FP_OK;
}

fp_status fp_byte_source_read(fp_byte_source *source, char *buffer, int64_t size, int64_t *got)
{
	fp_status status = FP_OK;
	*got = 0;
	if (size > CHUNK)
		size = CHUNK;
	while (*got == 0) {
		/* zstd may still have output when it has consumed all input, so it is called once more at the end. */
		if (source->input_used == source->input_size && !source->at_end)
			FP_TRY(refill(source));
		bool drained = source->input_used == source->input_size;
		if (source->compression == UNCOMPRESSED) {
			*got = source->input_size - source->input_used < size ? source->input_size - source->input_used : size;
			memcpy(buffer, source->input + source->input_used, (size_t)*got);
			source->input_used += *got;
		} else if (drained && !source->inside) {
			return FP_OK;
		} else {
			FP_TRY(source->compression == GZIP ? inflate_gzip(source, buffer, size, got)
											   : inflate_zstd(source, buffer, size, got));
			FP_TRY(check_ratio(source, *got));
			if (*got == 0 && drained && source->at_end && source->inside) {
				status =
					fp_fail(source->ctx, FP_ERROR_INPUT, "%s: ends in the middle of its %s data: the file is truncated",
							source->path, source->compression == GZIP ? "gzip" : "zstd");
				goto cleanup;
			}
		}
		if (*got == 0 && source->at_end && (source->compression == UNCOMPRESSED || !source->inside))
			return FP_OK;
	}
cleanup:
	return status;
}
