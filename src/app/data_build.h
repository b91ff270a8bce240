// octet data build and octet data train-tokenizer. argv[0] is the command's name. Return the exit code, throw octet::Error as run_data does.
#pragma once

namespace octet {

int run_build(int argc, char** argv);
int run_train_tokenizer(int argc, char** argv);

}  // namespace octet
