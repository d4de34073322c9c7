// Labels that differ in their bytes only.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/console/printable.h"
#include "learn/data/text.h"

namespace segfuse::data {
namespace {

/// Letters that Unicode composes with a mark, and the composed ones in the same order: of Latin,
/// Greek, Cyrillic and kana.
struct Composition {
  char32_t mark;
  std::u32string_view letters, composed;
};
// clang-format off
constexpr std::array<Composition, 27> kCompositions = {{
    {0x0300,
     U"AEIOUaeiouÜüNnЕИеиĒēŌōWwÂâĂăÊêÔôƠơƯưYy",
     U"ÀÈÌÒÙàèìòùǛǜǸǹЀЍѐѝḔḕṐṑẀẁẦầẰằỀềỒồỜờỪừỲỳ"},
    {0x0301,
     U"AEIOUYaeiouyCcLlNnRrSsZzÜüGgÅåÆæØø¨ΑΕΗΙΟΥΩϊα"
     U"εηιϋουωϒГКгкÇçĒēÏïKkMmÕõŌōPpŨũWwÂâĂăÊêÔôƠơƯư",
     U"ÁÉÍÓÚÝáéíóúýĆćĹĺŃńŔŕŚśŹźǗǘǴǵǺǻǼǽǾǿ΅ΆΈΉΊΌΎΏΐά"
     U"έήίΰόύώϓЃЌѓќḈḉḖḗḮḯḰḱḾḿṌṍṒṓṔṕṸṹẂẃẤấẮắẾếỐốỚớỨứ"},
    {0x0302,
     U"AEIOUaeiouCcGgHhJjSsWwYyZzẠạẸẹỌọ",
     U"ÂÊÎÔÛâêîôûĈĉĜĝĤĥĴĵŜŝŴŵŶŷẐẑẬậỆệỘộ"},
    {0x0303,
     U"ANOanoIiUuVvÂâĂăEeÊêÔôƠơƯưYy",
     U"ÃÑÕãñõĨĩŨũṼṽẪẫẴẵẼẽỄễỖỗỠỡỮữỸỹ"},
    {0x0304,
     U"AaEeIiOoUuÜüÄäȦȧÆæǪǫÖöÕõȮȯYyИиУуGgḶḷṚṛ",
     U"ĀāĒēĪīŌōŪūǕǖǞǟǠǡǢǣǬǭȪȫȬȭȰȱȲȳӢӣӮӯḠḡḸḹṜṝ"},
    {0x0306,
     U"AaEeGgIiOoUuУИиуЖжАаЕеȨȩẠạ",
     U"ĂăĔĕĞğĬĭŎŏŬŭЎЙйўӁӂӐӑӖӗḜḝẶặ"},
    {0x0307,
     U"CcEeGgIZzAaOoBbDdFfHhMmNnPpRrSsŚśŠšṢṣTtWwXxY"
     U"yſ",
     U"ĊċĖėĠġİŻżȦȧȮȯḂḃḊḋḞḟḢḣṀṁṄṅṖṗṘṙṠṡṤṥṦṧṨṩṪṫẆẇẊẋẎ"
     U"ẏẛ"},
    {0x0308,
     U"AEIOUaeiouyYΙΥιυϒЕІеіАаӘәЖжЗзИиОоӨөЭэУуЧчЫыH"
     U"hÕõŪūWwXxt",
     U"ÄËÏÖÜäëïöüÿŸΪΫϊϋϔЁЇёїӒӓӚӛӜӝӞӟӤӥӦӧӪӫӬӭӰӱӴӵӸӹḦ"
     U"ḧṎṏṺṻẄẅẌẍẗ"},
    {0x0309,
     U"AaÂâĂăEeÊêIiOoÔôƠơUuƯưYy",
     U"ẢảẨẩẲẳẺẻỂểỈỉỎỏỔổỞởỦủỬửỶỷ"},
    {0x030A,
     U"AaUuwy",
     U"ÅåŮůẘẙ"},
    {0x030B,
     U"OoUuУу",
     U"ŐőŰűӲӳ"},
    {0x030C,
     U"CcDdEeLlNnRrSsTtZzAaIiOoUuÜüGgKkƷʒjHh",
     U"ČčĎďĚěĽľŇňŘřŠšŤťŽžǍǎǏǐǑǒǓǔǙǚǦǧǨǩǮǯǰȞȟ"},
    {0x030F,
     U"AaEeIiOoRrUuѴѵ",
     U"ȀȁȄȅȈȉȌȍȐȑȔȕѶѷ"},
    {0x0311,
     U"AaEeIiOoRrUu",
     U"ȂȃȆȇȊȋȎȏȒȓȖȗ"},
    {0x031B,
     U"OoUu",
     U"ƠơƯư"},
    {0x0323,
     U"BbDdHhKkLlMmNnRrSsTtVvWwZzAaEeIiOoƠơUuƯưYy",
     U"ḄḅḌḍḤḥḲḳḶḷṂṃṆṇṚṛṢṣṬṭṾṿẈẉẒẓẠạẸẹỊịỌọỢợỤụỰựỴỵ"},
    {0x0324,
     U"Uu",
     U"Ṳṳ"},
    {0x0325,
     U"Aa",
     U"Ḁḁ"},
    {0x0326,
     U"SsTt",
     U"ȘșȚț"},
    {0x0327,
     U"CcGgKkLlNnRrSsTtEeDdHh",
     U"ÇçĢģĶķĻļŅņŖŗŞşŢţȨȩḐḑḨḩ"},
    {0x0328,
     U"AaEeIiUuOo",
     U"ĄąĘęĮįŲųǪǫ"},
    {0x032D,
     U"DdEeLlNnTtUu",
     U"ḒḓḘḙḼḽṊṋṰṱṶṷ"},
    {0x032E,
     U"Hh",
     U"Ḫḫ"},
    {0x0330,
     U"EeIiUu",
     U"ḚḛḬḭṴṵ"},
    {0x0331,
     U"BbDdKkLlNnRrTtZzh",
     U"ḆḇḎḏḴḵḺḻṈṉṞṟṮṯẔẕẖ"},
    {0x3099,
     U"かきくけこさしすせそたちつてとはひふへほうゝカキクケコサシスセソタチツテトハヒフヘホウワ"
     U"ヰヱヲヽ",
     U"がぎぐげござじずぜぞだぢづでどばびぶべぼゔゞガギグゲゴザジズゼゾダヂヅデドバビブベボヴヷ"
     U"ヸヹヺヾ"},
    {0x309A,
     U"はひふへほハヒフヘホ",
     U"ぱぴぷぺぽパピプペポ"},
}};
// clang-format on

/// The letter and the mark behind it as one character, or 0.
char32_t composed(char32_t letter, char32_t mark) {
  if (letter >= 0x1100 && letter < 0x1113 && mark >= 0x1161 && mark < 0x1176)  // Hangul
    return 0xAC00 + ((letter - 0x1100) * 21 + (mark - 0x1161)) * 28;
  const bool open = letter >= 0xAC00 && letter < 0xD7A4 && (letter - 0xAC00) % 28 == 0;
  if (open && mark > 0x11A7 && mark < 0x11C3) return letter + (mark - 0x11A7);
  const auto* row = std::ranges::find(kCompositions, mark, &Composition::mark);
  if (row == kCompositions.end()) return 0;
  const std::size_t at = row->letters.find(letter);
  return at == std::u32string_view::npos ? 0 : row->composed[at];
}

bool has_no_width(char32_t c) {
  return c == 0xAD || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2060 && c <= 0x2064) || (c >= 0xFE00 && c <= 0xFE0F) || c == 0xFEFF;
}
bool is_blank(char32_t c) {
  return c == 0xA0 || (c >= 0x2000 && c <= 0x200A) || c == 0x202F || c == 0x205F || c == 0x3000;
}

/// What a reader sees of a text.
std::u32string seen(std::string_view text) {
  std::u32string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(utf8_length(text, at), 1);
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
    char32_t c = length == 1 ? byte(0) : byte(0) & (0x7FU >> length);
    for (std::size_t i = 1; i < length; ++i) c = c << 6 | (byte(i) & 0x3FU);
    at += length;
    if (has_no_width(c)) continue;
    const char32_t one = out.empty() ? 0 : composed(out.back(), c);
    if (one != 0)
      out.back() = one;
    else
      out += is_blank(c) ? U' ' : c;
  }
  return out;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> look_alikes(
    const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> alike;
  std::map<std::u32string, std::string> known;
  for (const std::string& text : texts) {
    const auto [at, fresh] = known.emplace(seen(text), text);
    if (!fresh && at->second != text) alike.emplace_back(at->second, text);
  }
  return alike;
}

std::string byte_text(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(utf8_length(text, at), 1);
    out += out.empty() ? "" : " ";
    for (const char c : text.substr(at, length)) out += fmt::format("{:02x}", c & 0xFF);
    at += length;
  }
  return out;
}

}  // namespace segfuse::data
