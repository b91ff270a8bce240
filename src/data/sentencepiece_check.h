// What the SentencePiece library (0.1.97) believes of a model without looking, checked before it reads one: its normalizer walks a
// double-array trie (Darts) straight from the file and would read outside it.
//
//   ModelProto      {1 pieces: SentencePiece {1 piece, 2 score float}, 3 normalizer_spec, 5 denormalizer_spec: NormalizerSpec {2 precompiled_charsmap}}
//   charsmap        u32 bytes of the trie, the trie (u32 units), texts that end in a NUL each; a key's value is the place of its replacement
//   unit            bit 31: a value; else bits 0-7 label, bit 8: the key ends here, bits 10-30 offset of the children, bit 9: times 256
//
// Source: sentencepiece_model.proto; darts-clone (the layout of units), normalizer.cc (32 results at most).
#pragma once
#include <string>
#include <string_view>

namespace octet::data {

// Throws Error(ExitCode::config) with `where`: no well-formed message; a piece with a NUL byte or a score that is not finite; a trie that leads
// outside itself, has a cycle, more than 32 keys that are prefixes of one, or values outside the texts; a replacement of more than 256 bytes
// (the library would let a document grow so many times).
void check_sentencepiece_model(std::string_view model, const std::string& where);

}  // namespace octet::data
