#include "apps/generate/generate_request.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "apps/cli/flags.h"
#include "apps/cli/model_path.h"
#include "apps/generate/sidecar.h"
#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/generate/pipeline.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/json_value.h"
#include "equitile/io/machine_file.h"
#include "equitile/io/numbered_png.h"
#include "equitile/io/safetensors.h"
#include "equitile/model/sampling/denoise.h"
#include "equitile/model/text/text_clean.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDefaultSeed = 42;
constexpr std::string_view kMask = "mask:";

uint64_t RandomSeed() {
  std::random_device device;
  return device();  // 32 bits: as many as torch's generator uses
}

// A device or a pipe.
bool IsStream(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

bool IsStdout(const fs::path& path) {
  struct stat file {
  }, out{};
  return !path.empty() && stat(path.c_str(), &file) == 0 && fstat(STDOUT_FILENO, &out) == 0 &&
         file.st_dev == out.st_dev && file.st_ino == out.st_ino;
}

// A random seed cannot be given again: a run that goes on has the one it began with.
void TakeStoredSeed(const GenerateFlags& flags, GenerateTask& task) {
  const fs::path path = flags.resume.empty() ? task.checkpoint : fs::path(flags.resume);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;  // whether one is needed is decided later
  const auto parameters = ReadRunCheckpoint(path).parameters;
  const auto seed = parameters.find("seed");
  if (seed == parameters.end()) return;
  std::from_chars(seed->second.data(), seed->second.data() + seed->second.size(), task.seed);
}

// "a/out.mp4", 3 -> "a/out-0003.mp4"; "frames/%05d.png" -> "frames-0003/%05d.png".
fs::path Numbered(const fs::path& path, size_t number) {
  if (path.empty()) return path;
  if (IsNumberedPng(path)) {
    const fs::path folder = PictureFolder(path);
    return folder.parent_path() / fmt::format("{}-{:04}", folder.filename().string(), number) /
           path.filename();
  }
  return path.parent_path() /
         fmt::format("{}-{:04}{}", path.stem().string(), number, path.extension().string());
}

GenerateTask PromptLine(std::string_view line, uint64_t default_seed) {
  GenerateTask task;
  task.seed = default_seed;
  const size_t tab = line.find('\t');
  if (tab != line.npos) {
    const std::string_view seed = line.substr(0, tab);
    const auto [stop, error] = std::from_chars(seed.begin(), seed.end(), task.seed);
    if (error != std::errc{} || stop != seed.end() || task.seed > INT64_MAX) {
      throw InputError("'{}' before the tab is not a seed; must be a whole number, 0 to {}",
                       seed.substr(0, 40), INT64_MAX);
    }
    task.has_own_seed = true;
    line.remove_prefix(tab + 1);
    if (line.empty()) throw InputError("no prompt after the tab");
  }
  CleanPrompt(line);  // throws where it is not UTF-8
  task.prompt = line;
  return task;
}

// Folders of numbered pictures get their names from us where there are several, so we make them
// too.
void CheckVideo(const GenerateRequest& request, const GenerateTask& task) {
  if (task.output.empty()) return;
  const VideoOptions options = request.VideoOf(task);
  if (request.flags.prompts.empty() || !IsNumberedPng(task.output)) {
    return CheckVideoOutput(task.output, options);
  }
  const fs::path folder = PictureFolder(task.output);
  std::error_code error;
  if (!fs::exists(folder, error)) {
    CheckWritable(folder);
    if (request.flags.dry_run) return;
    if (fs::create_directory(folder, error); error) {
      throw InputError("{}: cannot be made: {}", folder.string(), error.message());
    }
  }
  CheckVideoOutput(task.output, options);
}

// Every file that the request reads or writes, with what it is; none may be written over another.
void CheckFiles(const GenerateRequest& request) {
  std::map<fs::path, const char*> known;
  const auto add = [&](const fs::path& path, const char* what) {
    std::error_code ignored;
    return known.emplace(fs::weakly_canonical(fs::absolute(path), ignored), what);
  };
  if (request.mask) {
    add(request.MaskPath(), "the mask");
    add(request.MaskPath().replace_extension(".json"), "the description of the mask");
  }
  if (!request.flags.prompts.empty()) add(request.flags.prompts, "the prompts");
  if (!request.flags.machine.empty()) add(request.flags.machine, "the rates of the machine");
  const auto check = [&](const fs::path& path, const char* what) {
    if (path.empty()) return;
    const auto [other, is_new] = add(path, what);
    if (!is_new && !IsStream(path)) {
      throw InputError("{}: cannot hold both {} and {}; give another name", path.string(),
                       other->second, what);
    }
    if (!request.flags.dry_run && !IsNumberedPng(path)) CheckWritable(path);
  };
  for (const GenerateTask& task : request.tasks) {
    check(task.output, "the video");
    check(task.save_latents, "the latents");
    check(task.checkpoint, "the checkpoint");
    check(task.sidecar, "the parameters of the run");
    check(task.perf_dump, "the seconds of the run");
    check(task.preview, "the preview");
  }
  check(request.flags.trace, "the trace");
}

std::vector<GenerateTask> MakeTasks(const GenerateFlags& flags, VideoFiles files) {
  const int64_t wanted = flags.seed.value_or(kDefaultSeed);
  const uint64_t seed = wanted < 0 ? RandomSeed() : static_cast<uint64_t>(wanted);
  std::vector<GenerateTask> tasks;
  if (!flags.prompts.empty()) {
    if (flags.prompt) throw InputError("give one of --prompt and --prompts");
    tasks = ReadPrompts(flags.prompts, seed);
  } else if (flags.prompt) {
    tasks.emplace_back();
    tasks[0].prompt = *flags.prompt;
    tasks[0].seed = seed;
  } else {
    throw InputError("what shall be in the video? give -p PROMPT, --prompts FILE or --from FILE");
  }
  if (files == VideoFiles::kWritten && flags.output.empty() && flags.save_latents.empty()) {
    throw InputError("where shall the video go? give -o FILE (or --save-latents FILE)");
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    GenerateTask& task = tasks[i];
    CleanPrompt(task.prompt);  // throws where it is not UTF-8
    if (files == VideoFiles::kNone) continue;
    const bool several = !flags.prompts.empty();
    task.output = several ? Numbered(flags.output, i + 1) : fs::path(flags.output);
    task.save_latents =
        several ? Numbered(flags.save_latents, i + 1) : fs::path(flags.save_latents);
    task.perf_dump = several ? Numbered(flags.perf_dump, i + 1) : fs::path(flags.perf_dump);
    task.fills_stdout = IsStdout(task.output) || IsStdout(task.save_latents);
    if (task.fills_stdout && flags.json) {
      throw InputError("--json: standard output is where {} goes",
                       IsStdout(task.output) ? "the video" : "the latents");
    }
    // What lies beside a device or a pipe would be a file in /dev.
    if (!IsStream(task.Name())) {
      const fs::path stem = IsNumberedPng(task.Name()) ? PictureFolder(task.Name()) : task.Name();
      task.sidecar = SidecarPath(task.Name());
      task.checkpoint = stem.string() + ".ckpt";
      if (flags.preview_every > 0) task.preview = stem.string() + ".preview.png";
    }
    if (wanted < 0 && flags.resumes && !task.has_own_seed) TakeStoredSeed(flags, task);
  }
  return tasks;
}

// The habit of other engines: two degrees mean usp.
void ApplyDegrees(GenerateFlags& flags) {
  if (!flags.ulysses_degree && !flags.ring_degree) return;
  if (flags.planner.value_or("auto") != "auto") {
    throw InputError("--planner {}: leave it out where --ulysses-degree or --ring-degree is given",
                     *flags.planner);
  }
  flags.planner =
      fmt::format("usp:{}x{}", flags.ulysses_degree.value_or(1), flags.ring_degree.value_or(1));
}

void ApplyFlags(const GenerateFlags& flags, GenerationConfig& config) {
  config.width = flags.width.value_or(config.width);
  config.height = flags.height.value_or(config.height);
  config.frames = flags.frames.value_or(config.frames);
  config.fps = flags.fps.value_or(config.fps);
  config.steps = flags.steps.value_or(config.steps);
  config.guidance = flags.guidance.value_or(config.guidance);
  config.flow_shift = flags.flow_shift.value_or(config.flow_shift);
  config.negative_prompt = flags.negative.value_or(config.negative_prompt);
  if (flags.sampler) config.sampler = ParseSamplerKind(*flags.sampler);
  if (flags.rng) config.rng = ParseNoiseKind(*flags.rng);
}

void CheckAxis(const char* what, int64_t patches, int64_t most) {
  if (patches > most) {
    throw InputError("{} {} patches: the model was made for at most {}", patches, what, most);
  }
}

// Blocks of another grid would be other tokens, even of as many.
void CheckMaskGrid(const MaskTable& mask, const std::string& path, const GenerationConfig& config,
                   const WanConfig& model) {
  const TokenGrid video{.frames = config.LatentFrames() / model.patch.frames,
                        .height = config.LatentHeight() / model.patch.height,
                        .width = config.LatentWidth() / model.patch.width};
  const std::optional<TokenGrid>& grid = mask.grid();
  if (!grid || *grid == video) return;
  if (grid->text_before != 0 || grid->text_after != 0) {
    throw InputError("{}: has text tokens; the self-attention of Wan has none", path);
  }
  throw InputError(
      "{}: is for a grid of {}x{}x{} tokens (frames, height, width), the video has "
      "{}x{}x{}",
      path, grid->frames, grid->height, grid->width, video.frames, video.height, video.width);
}

void CheckModelSizes(const GenerationConfig& config, const WanConfig& model) {
  CheckAxis("frame", config.LatentFrames() / model.patch.frames, model.rope_max_seq_len);
  CheckAxis("height", config.LatentHeight() / model.patch.height, model.rope_max_seq_len);
  CheckAxis("width", config.LatentWidth() / model.patch.width, model.rope_max_seq_len);
}

// For both passes, from files for one or two.
MaskTable AttentionMask(const MaskTable& read, const std::string& path,
                        const GenerationConfig& config, const WanConfig& model) {
  MaskTable mask = read.ForBatch(config.Passes());
  const int64_t tokens = VideoTokens(model, config);
  const BlockMask& first = mask.First().blocks();
  if (first.lanes().heads != model.heads) {
    throw InputError("{}: has {} heads, the model {}", path, first.lanes().heads, model.heads);
  }
  const BlockGrid& grid = first.grid();
  if (grid.q_tokens != tokens || grid.kv_tokens != tokens) {
    throw InputError("{}: is for {} x {} tokens, the video has {}", path, grid.q_tokens,
                     grid.kv_tokens, tokens);
  }
  CheckMaskGrid(mask, path, config, model);
  mask.CheckCovers({0, config.steps}, model.layers);
  return mask;
}

void SetAttention(const std::string& text, GenerateRequest& request) {
  request.attention = text;
  if (text == "dense") return;
  if (!text.starts_with(kMask)) {
    throw InputError("--attention {}: must be dense or mask:FILE", text);
  }
  if (text == kMask) throw InputError("--attention {}: FILE is missing", text);
  const std::string path = request.MaskPath().string();
  const MaskTable table = MaskTable::Read(path);
  request.mask_hash = table.hash();
  request.mask = AttentionMask(table, path, request.config, request.transformer);
}

// Opens every part, so that whatever is wrong with a header is said before work begins.
uint64_t Fingerprint(const CheckpointFolder& folder) {
  Hasher hasher;
  for (const char* part : {"transformer", "text_encoder", "vae"}) {
    hasher.Add(std::string_view(ReadTextFile(folder.Config(part))));
    hasher.Add(TensorFiles::OpenFolder(folder.Part(part)).Fingerprint());
  }
  for (const char* file : {"tokenizer.json", "spiece.model"}) {
    std::error_code ignored;
    const fs::path path = folder.Part("tokenizer") / file;
    if (fs::exists(path, ignored)) hasher.Add(std::string_view(ReadTextFile(path)));
  }
  return hasher.Digest();
}

}  // namespace

std::vector<GenerateTask> ReadPrompts(const fs::path& path, uint64_t default_seed) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const std::string text = ReadTextFile(path);
  std::string_view rest = text;
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  std::vector<GenerateTask> tasks;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == line.npos) continue;
    try {
      tasks.push_back(PromptLine(line, default_seed));
    } catch (const InputError& error) {
      throw InputError("{}, line {}: {}", path.string(), number, error.what());
    }
  }
  if (tasks.empty()) throw InputError("{}: holds no prompt", path.string());
  return tasks;
}

fs::path GenerateRequest::MaskPath() const {
  return attention.substr(std::min(attention.size(), kMask.size()));
}

bool GenerateRequest::BitsDependOnLayout() const {
  if (wire != "f32") return true;
  return planner == "auto" ? !flags.reproducible : planner != "ulysses" && planner != "fractional";
}

VideoOptions GenerateRequest::VideoOf(const GenerateTask& task) const {
  return {.height = config.height, .width = config.width, .fps = config.fps, .title = task.prompt};
}

std::map<std::string, std::string> GenerateRequest::Parameters(const GenerateTask& task,
                                                               DType weights_type) const {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  return {{"prompt", task.prompt},
          {"negative prompt", config.negative_prompt},
          {"seed", text(task.seed)},
          {"rng", text(NoiseKindName(config.rng))},
          {"width", text(config.width)},
          {"height", text(config.height)},
          {"frames", text(config.frames)},
          {"steps", text(config.steps)},
          {"guidance", text(config.guidance)},
          {"flow shift", text(config.flow_shift)},
          {"sampler", text(SamplerKindName(config.sampler))},
          {"text rows", text(config.text_rows)},
          {"tokenizer", tokenizer_name},
          {"attention", mask ? fmt::format("mask {}", HashText(mask_hash)) : "dense"},
          {"weights", text(DTypeName(weights_type))},
          {"vae tiling", flags.vae_tiling ? "yes" : "no"},
          {"layout", BitsDependOnLayout() ? fmt::format("{}, {} between ranks", planner, wire)
                                          : "any that gives the same bits"},
          {"model", HashText(fingerprint)}};
}

GenerateRequest CheckedRequest(const GenerateFlags& given, VideoFiles files) {
  GenerateFlags flags = given;
  RecordedRun recorded;
  if (!flags.from.empty()) recorded = ApplySidecar(flags.from, flags);
  ApplyDegrees(flags);
  std::vector<GenerateTask> tasks = MakeTasks(flags, files);
  const CheckpointFolder folder(FindModel(flags.model));
  GenerateRequest request{.flags = flags,
                          .tasks = std::move(tasks),
                          .folder = folder,
                          .config = ReadGenerationConfig(folder),
                          .transformer = ReadWanConfig(folder.Config("transformer")),
                          .tokenizer_name = flags.tokenizer.value_or("json"),
                          .attention = {},
                          .mask = {},
                          .planner = flags.planner.value_or("auto"),
                          .wire = flags.wire.value_or("f32"),
                          .weights = {},
                          .machine = {}};
  ApplyFlags(flags, request.config);
  CheckSizes(request.config);
  CheckModelSizes(request.config, request.transformer);
  CheckVaeFits(folder, ReadVaeConfig(folder.Config("vae")), request.transformer);
  if (recorded.text_rows != 0 && recorded.text_rows != request.config.text_rows) {
    throw InputError("--from {}: was made with {} rows of text, {} asks for {}", flags.from,
                     recorded.text_rows, folder.root().string(), request.config.text_rows);
  }
  CleanPrompt(request.config.negative_prompt);
  request.tokenizer = ParseTokenizerKind(request.tokenizer_name);
  if (!UnderLauncher()) {
    ParsePlanner(request.planner, static_cast<int32_t>(flags.ranks.ranks.value_or(1)));
  }
  SetAttention(flags.attention.value_or("dense"), request);
  if (recorded.mask != 0 && recorded.mask != request.mask_hash) {
    throw InputError("--from {}: was made with another mask than the one in {}", flags.from,
                     request.MaskPath().string());
  }
  if (flags.weights && *flags.weights != "auto") request.weights = ParseDType(*flags.weights);
  if (!flags.machine.empty()) request.machine = ReadMachineFile(flags.machine);
  request.fingerprint = Fingerprint(folder);
  if (recorded.model != 0 && recorded.model != request.fingerprint) {
    throw InputError("--from {}: was made with another model than the one in {}", flags.from,
                     folder.root().string());
  }
  for (const GenerateTask& task : request.tasks) CheckVideo(request, task);
  CheckFiles(request);
  return request;
}

}  // namespace equitile
