// The text of files and folders, in pieces that fit into memory.
//
//   TextSource source({"novels/", "notes.jsonl"}, {});
//   for (TextPiece piece; source.next(piece);) use(piece.text);
//
// A plain file is one document. A .jsonl file has one a line: the text in a
// field of its object. A folder stands for the files in it and below, by name,
// but not for hidden ones.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::train {

struct TextSourceOptions {
  std::string field = "text";  // of the objects in .jsonl files
  std::string exclude = {};    // a file in the folders that is not read
};

struct TextPiece {
  std::string text;
  int64_t position = 0;   // where it begins, in bytes of all files together
  int64_t num_bytes = 0;  // of the files that it took
  enum class Start { document, middle } start = Start::document;
  // Whole documents of .jsonl files are not cut.
  enum class Cut { anywhere, nowhere } cut = Cut::anywhere;
};

class TextSource {
 public:
  /// Errors: Failure (missing_data) for a path that is not there, cannot be
  /// read, or is a folder without files.
  TextSource(const std::vector<std::string>& paths,
             const TextSourceOptions& options);

  /// Of all files together.
  [[nodiscard]] int64_t num_bytes() const { return num_bytes_; }
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }

  /// The next piece; false at the end. Pieces of plain files have about 4 MB,
  /// and end with a line where there are lines.
  /// Errors: Failure. damaged_data: a line that is no JSON object, or one whose
  /// field is missing or no string, with file and line. missing_data: a file
  /// that has become unreadable.
  [[nodiscard]] bool next(TextPiece& piece);

 private:
  bool next_of_file(TextPiece& piece);
  bool next_chunk(TextPiece& piece);
  bool next_json(TextPiece& piece);
  [[nodiscard]] std::string text_of(const std::string& line) const;
  void open_file();

  TextSourceOptions options_;
  std::vector<std::string> files_;
  int64_t num_bytes_ = 0;

  size_t file_ = 0;  // the next one to open, or the open one
  std::ifstream stream_;
  bool is_json_ = false;
  int64_t line_ = 0;
  int64_t position_ = 0;
  std::string rest_;  // of a chunk: behind its last line
  TextPiece::Start start_ = TextPiece::Start::document;
};

}  // namespace tessera::train
