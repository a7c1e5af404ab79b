#include "equitile/io/arrays/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>

#include "equitile/base/error.h"
#include "tests/in_repository.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string File(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return file + header + data;
}

std::string Entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

// What the reader says about `file`; "" if it takes it. Always names the file, in one line.
std::string Complaint(const std::string& file) {
  try {
    ParseSafetensors(Bytes(file), "x.safetensors");
    return "";
  } catch (const InputError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("x.safetensors"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

std::string OpenComplaint(const std::filesystem::path& folder) {
  try {
    TensorFiles::OpenFolder(folder);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

StoredTensor Of(const std::string& name, StoredType type, std::vector<int64_t> shape,
                const std::vector<std::byte>& bytes) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.type = type;
  tensor.shape = std::move(shape);
  tensor.bytes = bytes;
  return tensor;
}

std::vector<std::byte> Count(size_t bytes, int first = 0) {
  std::vector<std::byte> values(bytes);
  for (size_t i = 0; i < bytes; ++i)
    values[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return values;
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const TempFolder folder;
  const auto a = Count(24), b = Count(6, 40), c = Count(3, 90), none = Count(0), one = Count(8, 7);
  const std::vector<StoredTensor> tensors = {
      Of("b", StoredType::kBF16, {3, 1}, b), Of("bytes", StoredType::kU8, {3}, c),
      Of("a \"x\"", StoredType::kF32, {2, 3}, a), Of("empty", StoredType::kF32, {0, 9}, none),
      Of("scalar", StoredType::kI64, {}, one)};
  WriteSafetensors(folder / "t.safetensors", tensors, {{"format", "pt"}});
  const TensorFiles files = TensorFiles::OpenFile(folder / "t.safetensors");
  EXPECT_EQ(files.metadata().at("format"), "pt");
  ASSERT_EQ(files.tensors().size(), tensors.size());
  for (const StoredTensor& tensor : tensors) {
    const StoredTensor& found = files[tensor.name];
    EXPECT_EQ(found.type, tensor.type);
    EXPECT_EQ(found.shape, tensor.shape);
    EXPECT_TRUE(std::equal(found.bytes.begin(), found.bytes.end(), tensor.bytes.begin(),
                           tensor.bytes.end()));
    const auto align = static_cast<uintptr_t>(StoredTypeBits(tensor.type) / 8);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(found.bytes.data()) % align, 0U) << tensor.name;
  }
  EXPECT_EQ(files["scalar"].Integers(), (std::vector<int64_t>{0x0E0D0C0B0A090807}));
  EXPECT_EQ(files.Find("A"), nullptr);
  EXPECT_THROW(files["A"], InputError);
}

TEST(Safetensors, ReadsTheGoldens) {
  const TensorFiles noise = TensorFiles::OpenFile(InRepository("tests/golden/noise.safetensors"));
  EXPECT_FALSE(noise.tensors().empty());
  const TensorFiles transformer =
      TensorFiles::OpenFolder(InRepository("tests/golden/tiny-wan/transformer"));
  EXPECT_EQ(transformer["proj_out.bias"].shape, (std::vector<int64_t>{64}));
  EXPECT_EQ(transformer.Bytes(), 1245312);  // the index's total_size
}

TEST(Safetensors, ConvertsAtAnyAlignment) {
  const std::string data("\0\0\x80\x3F\x80\x3F\0\x3C\0\xFC", 10);
  const std::string text =
      File("{" + Entry("f", "F32", "[1]", "[0,4]") + "," + Entry("b", "BF16", "[1,1]", "[4,6]") +
               "," + Entry("h", "F16", "[2]", "[6,10]") + "} ",
           data);
  for (size_t shift : {0, 1, 3}) {
    const std::string moved = std::string(shift, 'x') + text;
    const SafetensorsHeader header = ParseSafetensors(Bytes(moved).subspan(shift), "x");
    EXPECT_EQ(header.tensors[0].Floats(), (std::vector<float>{1.0f}));
    EXPECT_EQ(header.tensors[1].ToF32().view().Load(0, 0), 1.0f);
    EXPECT_EQ(header.tensors[2].Floats()[0], 1.0f);
    EXPECT_NO_THROW(header.tensors[1].CheckFinite());
    EXPECT_THROW(header.tensors[2].CheckFinite(), InputError);
    EXPECT_THROW(header.tensors[0].CheckShape({1, 1}), InputError);
    EXPECT_NO_THROW(header.tensors[0].CheckShape({1}));
  }
}

TEST(Safetensors, AcceptsWhatTheOfficialReaderAccepts) {
  EXPECT_EQ(Complaint(File("{}", "")), "");
  EXPECT_EQ(Complaint(File("  {}  \n", "")), "");
  EXPECT_EQ(Complaint(File("{\"__metadata__\":{\"a\":\"b\"}}", "")), "");
  EXPECT_EQ(Complaint(File("{" + Entry("a", "F4", "[2]", "[0,1]") + "}", "x")), "");
  EXPECT_EQ(
      Complaint(File("{\"a\":{\"dtype\":\"U8\",\"more\":{\"x\":[1,{\"y\":null}]},\"flag\":true,"
                     "\"shape\":[1],\"data_offsets\":[0,1]}}",
                     "x")),
      "");
  EXPECT_EQ(Complaint(File("{" + Entry("a", "U8", "[0]", "[0,0]") + "," +
                               Entry("b", "U8", "[1]", "[0,1]") + "," +
                               Entry("c", "U8", "[5,0]", "[1,1]") + "}",
                           "x")),
            "");
}

TEST(Safetensors, RefusesWhatDoesNotFitTheFile) {
  EXPECT_SAYS(Complaint("1234567"), "too short");
  EXPECT_SAYS(Complaint(std::string(8, '\xFF')), "header has 18446744073709551615");
  EXPECT_SAYS(Complaint(std::string(7, '\0') + "\x80{}"), "header has 9223372036854775808");
  const std::string good = File("{" + Entry("a", "F32", "[2]", "[0,8]") + "}", "12345678");
  EXPECT_EQ(Complaint(good), "");
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_NE(Complaint(good.substr(0, length)), "") << length;
  }
  EXPECT_SAYS(Complaint(good.substr(0, good.size() - 1)), "'a': ends at byte 8 of 7");
  EXPECT_SAYS(Complaint(good + "x"), "1 bytes after the last tensor");
}

TEST(Safetensors, RefusesWrongEntries) {
  const auto with = [](const std::string& entries, size_t bytes = 8) {
    return Complaint(File("{" + entries + "}", std::string(bytes, 'x')));
  };
  const std::string a = Entry("a", "F32", "[1]", "[0,4]");
  EXPECT_SAYS(with(a + "," + Entry("b", "F32", "[1]", "[2,6]"), 6), "'a' and 'b' overlap");
  EXPECT_SAYS(with(a + "," + Entry("b", "U8", "[1]", "[5,6]"), 6), "1 bytes before tensor 'b'");
  EXPECT_SAYS(with(Entry("b", "U8", "[7]", "[1,8]")), "1 bytes before tensor 'b'");
  EXPECT_SAYS(with(a + "," + a, 4), "tensor 'a' is there twice");
  EXPECT_SAYS(with("\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}"),
              "key 'dtype' is there twice");
  EXPECT_SAYS(with(Entry("a", "F32", "[2]", "[0,4]"), 4), "takes 8 bytes, not 4");
  EXPECT_SAYS(with(Entry("a", "F12", "[2]", "[0,8]")), "unknown dtype 'F12'");
  EXPECT_SAYS(with(Entry("a", "F32", "[-2]", "[0,8]")), "'shape' must be a list");
  EXPECT_SAYS(with(Entry("a", "F32", "[2.0]", "[0,8]")), "'shape' must be a list");
  EXPECT_SAYS(with(Entry("a", "F32", "[[2]]", "[0,8]")), "'shape' must be a list");
  EXPECT_SAYS(with(Entry("a", "F32", "2", "[0,8]")), "'shape' must be a list");
  EXPECT_SAYS(with(Entry("a", "F32", "[2]", "[8,0]")), "before it begins");
  EXPECT_SAYS(with(Entry("a", "F32", "[2]", "[0,4,8]")), "[begin, end]");
  EXPECT_SAYS(with(Entry("a", "F32", "[4611686018427387904,4]", "[0,8]")), "absurdly large");
  EXPECT_SAYS(with(Entry("a", "F32", "[18446744073709551615,0]", "[0,0]")), "absurdly large");
  EXPECT_SAYS(with(Entry("a", "F32", "[4294967296,4294967296,0]", "[0,0]")), "absurdly large");
  EXPECT_SAYS(with(Entry("a", "F4", "[3]", "[0,1]"), 1), "not whole bytes");
  EXPECT_SAYS(with("\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}"), "'dtype' is missing");
  EXPECT_SAYS(with("\"a\":3"), "must be an object");
  EXPECT_SAYS(with("\"__metadata__\":{\"a\":3}"), "must be a text");
  EXPECT_SAYS(with("\"__metadata__\":[]"), "must be an object");
  EXPECT_SAYS(Complaint(File("[]", "")), "must be a JSON object");
  EXPECT_SAYS(Complaint(File("{\"\xFF\":{}}", "")), "not JSON");
  EXPECT_SAYS(Complaint(File("{} {}", "")), "not JSON");
  EXPECT_SAYS(with("\"a\":{\"x\":" + std::string(99, '[')), "nested too deep");
  EXPECT_SAYS(with(Entry(std::string(5000, 'n'), "U8", "[8]", "[0,8]")), "a name of 5000 bytes");
}

class Shards : public testing::Test {
 protected:
  void SetUp() override {
    bytes_ = Count(8);
    WriteShard(1, {Of("a", StoredType::kF32, {2}, bytes_)});
    WriteShard(2, {Of("b", StoredType::kF32, {2}, bytes_), Of("c", StoredType::kI64, {}, bytes_)});
    WriteIndex(R"("a":"SHARD1","b":"SHARD2","c":"SHARD2")");
  }
  static std::string Name(int shard) {
    return "model-0000" + std::to_string(shard) + "-of-00002.safetensors";
  }
  void WriteShard(int shard, const std::vector<StoredTensor>& tensors) {
    WriteSafetensors(folder_ / Name(shard), tensors);
  }
  void WriteIndex(std::string map) {
    for (int shard : {1, 2}) {
      const std::string word = "SHARD" + std::to_string(shard);
      for (size_t at; (at = map.find(word)) != std::string::npos;) {
        map.replace(at, word.size(), Name(shard));
      }
    }
    folder_.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  }
  std::string Complaint() { return OpenComplaint(folder_ / "."); }

  TempFolder folder_;
  std::vector<std::byte> bytes_;
};

TEST_F(Shards, AreOneSetOfTensors) {
  const TensorFiles files = TensorFiles::OpenFolder(folder_ / ".");
  EXPECT_EQ(files.tensors().size(), 3U);
  EXPECT_EQ(files.Bytes(), 24);
  EXPECT_EQ(files["c"].type, StoredType::kI64);
}

TEST_F(Shards, FingerprintIsOfTheWeightsNotOfTheSharding) {
  const uint64_t sharded = TensorFiles::OpenFolder(folder_ / ".").Fingerprint();
  const auto write = [&](const std::vector<std::byte>& c) {
    WriteSafetensors(folder_ / "all.safetensors",
                     std::vector<StoredTensor>{Of("a", StoredType::kF32, {2}, bytes_),
                                               Of("b", StoredType::kF32, {2}, bytes_),
                                               Of("c", StoredType::kI64, {}, c)});
    return TensorFiles::OpenFile(folder_ / "all.safetensors").Fingerprint();
  };
  EXPECT_EQ(write(bytes_), sharded);
  EXPECT_NE(write(Count(8, 1)), sharded);
}

// What fuzzing begins with: files that are taken, and whole within its -max_len.
TEST(Safetensors, SeedsOfTheFuzzer) {
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(InRepository("tests/data/fuzz"))) {
    if (entry.path().extension() != ".safetensors") continue;
    ++seeds;
    EXPECT_LE(entry.file_size(), 4096u) << entry.path();
    EXPECT_NO_THROW(TensorFiles::OpenFile(entry.path())) << entry.path();
  }
  EXPECT_GE(seeds, 3);
}

// At any address, and of any shape: kernels get aligned rows, in place where they are.
TEST(StoredMatrix, IsAligned) {
  alignas(8) std::byte storage[64] = {};
  const float values[] = {1, -2, 3, 4, 5, 6};
  for (size_t offset = 0; offset < 8; ++offset) {
    std::memcpy(storage + offset, values, sizeof(values));
    const StoredTensor tensor{.name = "x",
                              .type = StoredType::kF32,
                              .shape = {2, 3, 1},
                              .bytes = {storage + offset, sizeof(values)},
                              .file = "x"};
    const StoredMatrix matrix(tensor, 2, 3);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.view().Address(0, 0)) % sizeof(float), 0u);
    EXPECT_EQ(matrix.view().Address(0, 0) == storage + offset, offset % 4 == 0);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(matrix.view().Load(i / 3, i % 3), values[i]);
  }
}

// Pages of a file that are in memory, whoever has read them.
int64_t CachedPages(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  const auto size = static_cast<size_t>(std::filesystem::file_size(path));
  void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  EXPECT_NE(map, MAP_FAILED);
  std::vector<unsigned char> cached(size / static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + 1);
  EXPECT_EQ(::mincore(map, size, cached.data()), 0);
  ::munmap(map, size);
  return std::count_if(cached.begin(), cached.end(), [](unsigned char c) { return c & 1; });
}

// Tensors of 8 MB each, of which nothing is on the disk, nor in memory before it is read.
TEST(Fingerprint, ReadsWhatItLooksAt) {
  constexpr int64_t kTensors = 8, kBytes = 8 << 20;
  const TempFolder folder;
  const std::filesystem::path path = folder / "x.safetensors";
  std::string entries;
  for (int64_t i = 0; i < kTensors; ++i) {
    entries += (i > 0 ? "," : "") + Entry(fmt::format("t{}", i), "U8", fmt::format("[{}]", kBytes),
                                          fmt::format("[{},{}]", i * kBytes, (i + 1) * kBytes));
  }
  const std::string start = File("{" + entries + "}", "");
  std::ofstream(path, std::ios::binary) << start;
  std::filesystem::resize_file(path, start.size() + kTensors * kBytes);
  const TensorFiles files = TensorFiles::OpenFile(path);
  const int64_t before = CachedPages(path);
  if (before > 2048) GTEST_SKIP() << "a file system without a cache of its own";
  EXPECT_NE(files.Fingerprint(), 0u);
  // Eight parts of each, on one page or two.
  EXPECT_LE(CachedPages(path) - before, kTensors * 8 * 2);
}

TEST_F(Shards, MissingOnes) {
  std::filesystem::remove(folder_ / Name(2));
  EXPECT_SAYS(Complaint(), "shard 'model-00002-of-00002.safetensors' is missing");
}

TEST_F(Shards, MissingTensors) {
  WriteShard(2, {Of("b", StoredType::kF32, {2}, bytes_)});
  EXPECT_SAYS(Complaint(), "tensor 'c' should be in shard");
}

TEST_F(Shards, TensorsThatTheIndexDoesNotPlaceThere) {
  WriteIndex(R"("a":"SHARD1","b":"SHARD2")");
  EXPECT_SAYS(Complaint(), "holds tensor 'c'");
  WriteIndex(R"("a":"SHARD1","b":"SHARD2","c":"SHARD1")");
  EXPECT_NE(Complaint(), "");
}

TEST_F(Shards, ThatTheIndexDoesNotKnow) {
  WriteIndex(R"("a":"SHARD1")");
  EXPECT_SAYS(Complaint(), "'model-00002-of-00002.safetensors' lies beside it");
}

TEST_F(Shards, OfStrangeNames) {
  for (const char* name :
       {"../x.safetensors", "/x.safetensors", "a\\\\x.safetensors", "..", "", "x"}) {
    WriteIndex(std::string("\"a\":\"") + name + "\"");
    EXPECT_SAYS(Complaint(), "must be the plain name") << name;
  }
}

TEST_F(Shards, IndexOfTheWrongForm) {
  WriteIndex("\"a\":3");
  EXPECT_SAYS(Complaint(), "must name its shard");
  WriteIndex(R"("a":"SHARD1","a":"SHARD1")");
  EXPECT_SAYS(Complaint(), "key 'a' is there twice");
  WriteIndex("");
  EXPECT_SAYS(Complaint(), "weight_map is empty");
  folder_.Write("model.safetensors.index.json", "{}");
  EXPECT_SAYS(Complaint(), "'weight_map' is missing");
}

TEST(TensorFolder, WithoutWeights) {
  const TempFolder folder;
  EXPECT_SAYS(OpenComplaint(folder / "."), "holds no weights");
  EXPECT_SAYS(OpenComplaint(folder / "none"), "no such folder");
  std::filesystem::create_directories(folder / "model.safetensors");
  EXPECT_SAYS(OpenComplaint(folder / "."), "not a regular file");
}

}  // namespace
}  // namespace equitile
