#include "doctor/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/os/file.h"
#include "doctor/memory/levels.h"
#include "doctor/pickle.h"
#include "doctor/record_json.h"
#include "segfuse/error.h"
#include "support/source_dir.h"
#include "unit/doctor/some_heap.h"

namespace segfuse::doctor {
namespace {

using runtime::HeapEvent;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::string failure(const std::string& text) {
  try {
    (void)parse_record(text, "some.file");
  } catch (const DataError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// All of a record, for comparing.
std::string whole(const MemoryRecord& record) { return to_json(record); }

TEST(Record, JsonGivesBackWhatWasWritten) {
  SomeHeap some;
  some.work(400);
  const MemoryRecord record = capture(some.heap);
  ASSERT_GT(record.history.size(), 200U);
  const std::string json = to_json(record);
  const MemoryRecord again = parse_record(json, "x");
  EXPECT_EQ(to_json(again), json);
  ASSERT_EQ(again.history.size(), record.history.size());
  for (std::size_t i = 0; i < record.history.size(); ++i) {
    EXPECT_EQ(again.history[i].label, record.history[i].label);
    EXPECT_EQ(again.history[i].nanoseconds, record.history[i].nanoseconds);
    EXPECT_EQ(again.history[i].offset, record.history[i].offset);
  }
  EXPECT_EQ(again.snapshot->entries.size(), record.snapshot->entries.size());
  EXPECT_EQ(again.streams, record.streams);
}

TEST(Record, ChromeTraceGivesBackWhatWasWritten) {
  SomeHeap some;
  some.work(400);
  const MemoryRecord record = capture(some.heap);
  EXPECT_EQ(whole(parse_record(to_chrome_trace(record), "x")), whole(record));
  const MemoryRecord no_snapshot{"segfuse", record.streams, std::nullopt, record.history};
  EXPECT_EQ(whole(parse_record(to_chrome_trace(no_snapshot), "x")), whole(no_snapshot));
}

// Viewers pair the begin and the end of a span by name, category and id.
TEST(Record, ChromeTracePairsSpansAndCountersAreTheHeaps) {
  SomeHeap some;
  some.work(600);
  const MemoryRecord record = capture(some.heap);
  const Json json = Json::parse(to_chrome_trace(record));
  std::map<std::uint64_t, std::string> open;
  std::size_t closed = 0;
  Json last;
  for (const Json& event : json["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase == "C") last = event["args"];
    if (phase == "b") {
      EXPECT_TRUE(open.emplace(event["id"], event["name"]).second);
    }
    if (phase == "e") {
      ASSERT_TRUE(open.contains(event["id"]));
      EXPECT_EQ(open[event["id"]], event["name"].get<std::string>());
      open.erase(event["id"]);
      ++closed;
    }
  }
  const auto& statistics = record.snapshot->statistics;
  EXPECT_EQ(open.size(), statistics.live_blocks);
  EXPECT_GT(closed, 100U);
  EXPECT_EQ(last["live"], statistics.live_bytes);
  EXPECT_EQ(last["cached"], statistics.cached_bytes);
  EXPECT_EQ(last["free"], statistics.free_bytes);
  EXPECT_EQ(last["mapped"], statistics.mapped_bytes);
}

// Whatever part of the history is left, levels end at the snapshot's, and what is known at the
// beginning is what the whole history says.
TEST(Record, LevelsAreRightWhenTheHistoryBeginsLate) {
  SomeHeap some;
  some.work(500);
  const MemoryRecord record = capture(some.heap);
  Walk whole_walk(record);
  for (std::size_t late = 0; late <= record.history.size(); ++late) {
    MemoryRecord part = record;
    part.history.erase(part.history.begin(),
                       part.history.begin() + static_cast<std::ptrdiff_t>(late));
    Walk walk(part);
    ASSERT_EQ(walk.levels().live, whole_walk.levels().live) << late;
    ASSERT_EQ(walk.levels().cached, whole_walk.levels().cached) << late;
    ASSERT_EQ(walk.levels().mapped, whole_walk.levels().mapped) << late;
    ASSERT_EQ(walk.held().size(), whole_walk.held().size());
    for (const HeapEvent& event : part.history) walk.apply(event);
    const auto& statistics = part.snapshot->statistics;
    ASSERT_EQ(walk.levels().live, static_cast<std::int64_t>(statistics.live_bytes));
    if (late < record.history.size()) whole_walk.apply(record.history[late]);
  }
}

TEST(Record, MemoryThatIsUnmappedWasMappedBefore) {
  MemoryRecord record;
  record.history.push_back({.kind = HeapEvent::Kind::kMap, .bytes = 1000, .label = ""});
  record.history.push_back({.kind = HeapEvent::Kind::kUnmap, .bytes = 3000, .label = ""});
  record.history.push_back({.kind = HeapEvent::Kind::kFlush, .bytes = 500, .label = ""});
  Walk walk(record);
  EXPECT_EQ(walk.levels().mapped, 2000);
  EXPECT_EQ(walk.levels().cached, 500);
  for (const HeapEvent& event : record.history) walk.apply(event);
  EXPECT_EQ(walk.levels().mapped, 0);
  EXPECT_EQ(walk.levels().cached, 0);
}

TEST(Record, MalformedFilesAreRefusedWithTheirPlace) {
  SomeHeap some;
  some.work(50);
  const std::string good = to_json(capture(some.heap));
  const auto changed = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_THAT(failure(""), HasSubstr("some.file: the file is empty"));
  EXPECT_THAT(failure("hello"), HasSubstr("some.file:1:1: expected a memory record"));
  EXPECT_THAT(failure("{}"), HasSubstr("not a record of memory"));
  EXPECT_THAT(failure("{\n \"a\": 1,\n b}"), HasSubstr("some.file:3:2: this is not JSON, at 'b}'"));
  EXPECT_THAT(failure(good.substr(0, good.size() / 2)), HasSubstr("the JSON ends too early"));
  EXPECT_THAT(failure(changed("\"version\": 1", "\"version\": 7")),
              HasSubstr("at version: expected version 1, found 7"));
  EXPECT_THAT(failure(changed("\"kind\": \"allocate\"", "\"kind\": \"alocate\"")),
              HasSubstr("].kind: expected one of allocate, free, map"));
  EXPECT_THAT(failure(changed("\"hard_limit\": ", "\"hard_limit\": -")),
              HasSubstr("at snapshot.hard_limit: expected a whole number from 0 on, found -"));
  EXPECT_THAT(failure(changed("\"entries\"", "\"entry\"")),
              HasSubstr("at snapshot: there is no 'entries'"));
  EXPECT_THAT(failure(changed("\"arena\": 1", "\"arena\": 2")), HasSubstr("arena 0 (small) or 1"));
  EXPECT_THAT(failure("{\"traceEvents\": 3}"), HasSubstr("at traceEvents: expected a list"));
  EXPECT_THAT(failure("[]"), HasSubstr("segfuse.memory"));
  EXPECT_THAT(failure("[1]"), HasSubstr("at [0]: expected an object, found 1"));
}

constexpr const char* kRmm =
    "Thread,Time,Action,Pointer,Size,Stream\n"
    "7,23:59:59.999999,allocate,0x7f0000001000,1000,0x0\n"
    "7,00:00:00.000001,allocate,0x7f0000002000,5000,0x2\n"
    "8,00:00:00.5,free,0x7f0000001000,1000,0x2\n"
    "8,00:00:01:000250,free,0x7f0000000000,64,0x0\n"
    "8,00:00:02.000000,allocate failure,(nil),99999999,0x0\n";

TEST(Record, ReadsRmmLogs) {
  const MemoryRecord record = parse_record(kRmm, "x.csv");
  ASSERT_EQ(record.history.size(), 5U);
  const auto& h = record.history;
  EXPECT_EQ(h[0].offset, 0x1000U) << "from the lowest address";
  EXPECT_EQ(h[0].nanoseconds, 0U);
  EXPECT_EQ(h[1].nanoseconds, 2000U) << "over midnight";
  EXPECT_EQ(h[1].stream, 1U);
  EXPECT_EQ(h[2].kind, HeapEvent::Kind::kFree);
  EXPECT_EQ(h[2].serial, h[0].serial);
  EXPECT_EQ(h[2].nanoseconds, 500'001'000U);
  EXPECT_EQ(h[3].nanoseconds, 1'000'251'000U);
  EXPECT_EQ(h[4].kind, HeapEvent::Kind::kOutOfMemory);
  EXPECT_EQ(record.streams.at(1), "stream 0x2");
  Walk walk(record);
  EXPECT_EQ(walk.levels().live, 64) << "freed, so it was there before";
}

TEST(Record, AStepBackOfAnHourIsNoMidnight) {
  const MemoryRecord record = parse_record(
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "7,11:00:00.000002,allocate,0x1000,1000,0x0\n"
      "8,10:00:00.000002,allocate,0x2000,1000,0x0\n"
      "7,10:59:59.000002,allocate,0x3000,1000,0x0\n",
      "x.csv");
  ASSERT_EQ(record.history.size(), 3U);
  EXPECT_EQ(record.history[0].nanoseconds, 3'600'000'000'000U);
  EXPECT_EQ(record.history[1].nanoseconds, 0U);
  EXPECT_EQ(record.history[2].nanoseconds, 3'599'000'000'000U);
}

TEST(Record, LinesOfTwoThreadsMayCrossAtMidnight) {
  const MemoryRecord record = parse_record(
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "7,23:59:59.900000,allocate,0x1000,1000,0x0\n"
      "7,00:00:00.100000,allocate,0x2000,1000,0x0\n"
      "8,23:59:59.950000,allocate,0x3000,1000,0x0\n"
      "7,00:00:00.200000,allocate,0x4000,1000,0x0\n",
      "x.csv");
  ASSERT_EQ(record.history.size(), 4U);
  EXPECT_EQ(record.history[1].nanoseconds, 200'000'000U);
  EXPECT_EQ(record.history[2].nanoseconds, 50'000'000U);
  EXPECT_EQ(record.history[3].nanoseconds, 300'000'000U);
}

TEST(Record, RefusesBrokenRmmLogsWithTheirPlace) {
  const std::string header = "Thread,Time,Action,Pointer,Size,Stream\n";
  EXPECT_THAT(failure(header + "1,10:00:00.1,allocate,0x10,12\n"),
              HasSubstr("some.file:2: expected 6"));
  EXPECT_THAT(failure(header + "1,10:00:00.1,allocated,0x10,12,0\n"),
              HasSubstr("some.file:2:14: expected allocate, free or allocate failure, found"));
  EXPECT_THAT(failure(header + "1,10:00:00.1,allocate,0xzz,12,0\n"), HasSubstr("some.file:2:23"));
  EXPECT_THAT(failure(header + "1,10:00:00.1,allocate,0x10,-12,0\n"), HasSubstr("some.file:2:28"));
  for (const char* time : {"noon", "", ".5", "1634567890.5:3", "10:00", "99999999999.5",
                           "1634567890.", "10:00:00.5.5"})
    EXPECT_THAT(failure(header + "1," + time + ",allocate,0x10,12,0\n"),
                HasSubstr("some.file:2:3: expected a time of day or seconds since 1970"))
        << time;
}

TEST(Record, ReadsRmmLogsWithSecondsSince1970) {
  const MemoryRecord record = parse_record(
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "7,1634567890.999999,allocate,0x7f0000001000,1000,0x0\n"
      "7,1634567891.000001,allocate,0x7f0000002000,5000,0x2\n"
      "8,1634600000.5,free,0x7f0000001000,1000,0x2\n"
      "8,1634567891.0000025009,free,0x7f0000002000,5000,0x2\n",
      "x.csv");
  ASSERT_EQ(record.history.size(), 4U);
  const auto& h = record.history;
  EXPECT_EQ(h[0].nanoseconds, 0U);
  EXPECT_EQ(h[1].nanoseconds, 2000U);
  EXPECT_EQ(h[2].nanoseconds, 32'109'500'001'000U);
  EXPECT_EQ(h[3].nanoseconds, 3500U) << "another thread's; a step back is no midnight here";
  EXPECT_EQ(h[2].serial, h[0].serial);
}

constexpr const char* kTorch = R"({"segments": [
 {"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
  "blocks": [
   {"size": 512, "requested_size": 400, "state": "active_allocated",
    "frames": [{"filename": "/usr/lib/torch/nn.py", "line": 3, "name": "call"},
               {"filename": "/srv/model.py", "line": 12, "name": "forward"}]},
   {"size": 1024, "requested_size": 0, "state": "active_pending_free", "frames": []},
   {"size": 2095616, "requested_size": 0, "state": "inactive"}]}],
 "device_traces": [[], [
  {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0, "time_us": 5},
  {"action": "alloc", "addr": 4096, "size": 400, "stream": 0, "time_us": 6, "frames": []},
  {"action": "alloc", "addr": 4608, "size": 1000, "stream": 9, "time_us": 8, "frames": []},
  {"action": "free_requested", "addr": 4608, "size": 1000, "stream": 9, "time_us": 9},
  {"action": "free_completed", "addr": 4608, "size": 1000, "stream": 9, "time_us": 10},
  {"action": "oom", "device_free": 4, "size": 1000, "stream": 0, "time_us": 10}]]})";

TEST(Record, ReadsPyTorchSnapshots) {
  std::string text = kTorch;
  const MemoryRecord other = parse_record(text, "x.json");
  EXPECT_TRUE(other.snapshot->entries.empty()) << "the segments are of device 0, the trace of 1";
  text.replace(text.find("\"device\": 0"), 11, "\"device\": 1");
  const MemoryRecord record = parse_record(text, "x.json");
  ASSERT_EQ(record.history.size(), 5U);
  EXPECT_EQ(record.history[0].kind, HeapEvent::Kind::kMap);
  EXPECT_EQ(record.history[2].stream, 1U);
  EXPECT_EQ(record.history[3].kind, HeapEvent::Kind::kFree);
  EXPECT_EQ(record.history[4].kind, HeapEvent::Kind::kOutOfMemory);
  EXPECT_EQ(record.history[1].nanoseconds, 1000U);
  ASSERT_EQ(record.snapshot->entries.size(), 3U);
  EXPECT_EQ(record.snapshot->entries[0].label, "model.py:12 forward");
  EXPECT_EQ(record.snapshot->entries[0].requested, 400U);
  EXPECT_FALSE(record.snapshot->entries[1].uses.empty());
  EXPECT_EQ(record.snapshot->statistics.mapped_bytes, 2097152U);
  text.replace(text.find("\"addr\": 4096"), 12, "\"addr\": null");
  EXPECT_THAT(
      failure(text),
      HasSubstr("at device_traces[1][0].addr: expected a whole number from 0 on, found null"));
}

// As Python wrote it: frames that are the same are there once.
TEST(Record, ReadsPyTorchSnapshotsAsPickles) {
  const std::string file =
      read_file(fs::path(SEGFUSE_SOURCE_DIR) / "tests/golden/memory/snapshot.pickle");
  std::string text = kTorch;
  text.replace(text.find("\"device\": 0"), 11, "\"device\": 1");
  MemoryRecord expected = parse_record(text, "x.json");
  expected.history[1].label = expected.history[2].label = "model.py:12 forward";
  expected.history[3].label = expected.history[2].label;  // freed: the block's
  EXPECT_EQ(whole(parse_record(file, "x.pickle")), whole(expected));
  const Json extra = read_pickle(file, "x.pickle")["extra"];
  EXPECT_EQ(extra, Json::parse(R"({"none": null, "big": 1099511627776, "neg": -3,
      "neg2": -1099511627776, "real": 0.25, "yes": true, "t": [1, 2], "t4": [1, 2, 3, 4],
      "empty": [], "7": [false]})"));
  for (std::size_t size = 3; size < file.size(); ++size)
    EXPECT_THAT(failure(file.substr(0, size)), HasSubstr("found a pickle that is cut short"));
}

std::string pickle_of(std::string_view body) { return "\x80\x04" + std::string(body); }

TEST(Record, WhatAPickleCallsIsRefusedByName) {
  using namespace std::string_literals;
  EXPECT_THAT(
      failure(pickle_of("cos\nsystem\n(X\x02\0\0\0idtR."s)),
      HasSubstr("some.file: byte 2: found GLOBAL of 'os.system'; of a pickle dicts, lists"));
  EXPECT_THAT(failure(pickle_of("\x8c\x02os\x8c\x06system\x93."s)),
              HasSubstr("byte 14: found STACK_GLOBAL of 'os.system'"));
  EXPECT_THAT(failure(pickle_of("}R."s)), HasSubstr("found REDUCE;"));
  EXPECT_THAT(failure(pickle_of("}}b."s)), HasSubstr("found BUILD;"));
  EXPECT_THAT(failure(pickle_of("C\x01x."s)), HasSubstr("found SHORT_BINBYTES;"));
  EXPECT_THAT(failure(pickle_of("\xfe."s)), HasSubstr("found instruction 0xfe;"));
  EXPECT_THAT(failure(pickle_of("\x80\x09."s)), HasSubstr("a protocol after 5"));
  for (const auto& [body, what] : std::map<std::string, std::string>{
           {"."s, "ends without a value"},
           {"e."s, "the end of a group that never began"},
           {"(K\1a."s, "items that are added to something else"},
           {"}K\1K\2a."s, "items that are added to something else"},
           {"}(K\1u."s, "a key without a value"},
           {"}]K\1s."s, "a key of a dict that is neither"},
           {"0."s, "a value that is used and not there"},
           {"h\7."s, "a name that no value has"},
           {"q\7."s, "a name for a value that is not there"},
           {"\x8a\x0a\1\1\1\1\1\1\1\1\1\1."s, "a number of more than 64 bits"},
           {"X\xff\xff\xff\xffx."s, "cut short"},
           {"\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."s, "cut short"}})
    EXPECT_THAT(failure(pickle_of(body)), HasSubstr(what)) << body;
}

// A list within itself, deep ones, and lists of lists of the same list.
TEST(Record, PicklesDoNotGrowWithoutEnd) {
  EXPECT_THAT(failure(pickle_of("]\x94h" + std::string(1, '\0') + "a.")),
              HasSubstr("more than 64 deep"));
  const std::string deep(1'000'000, ']');
  EXPECT_THAT(failure(pickle_of(deep + std::string(999'999, 'a') + ".")),
              HasSubstr("more than 64 deep"));
  std::string laughs = "K\1";
  for (int i = 0; i < 40; ++i)
    laughs += "\x94(h" + std::string(1, static_cast<char>(i)) + "h" +
              std::string(1, static_cast<char>(i)) + "t";
  EXPECT_THAT(failure(pickle_of(laughs + ".")), HasSubstr("of which many are the same"));
}

}  // namespace
}  // namespace segfuse::doctor
