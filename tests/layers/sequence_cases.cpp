#include "tests/layers/layer_case.h"

namespace tessera::testing {

namespace nn = torch::nn;
using torch::Tensor;

namespace {

// What RNN, LSTM and GRU give for a sequence of 3, batch 4, 4 features.
constexpr auto kSequence = [](auto& rnn, Batch batch) -> Tensor {
  return std::get<0>(rnn.forward(values(batch, {3, 4, 4})));
};

constexpr auto kPacked = [](auto& rnn, Batch batch) -> Tensor {
  namespace rnn_utils = nn::utils::rnn;
  const auto packed = rnn_utils::pack_padded_sequence(
      values(batch, {3, 4, 4}), torch::tensor({3, 3, 2, 1}, torch::kLong));
  const auto output = std::get<0>(rnn.forward_with_packed_input(packed));
  return std::get<0>(rnn_utils::pad_packed_sequence(output));
};

// A call that people make between steps; it rebuilds lists of weights.
constexpr auto kFlattened = [](auto& rnn, Batch batch) -> Tensor {
  rnn.eval();
  rnn.train();
  rnn.flatten_parameters();
  return std::get<0>(rnn.forward(values(batch, {3, 4, 4})));
};

Tensor run_lstm_with_state(nn::LSTMImpl& lstm, Batch batch) {
  const auto state =
      std::make_tuple(values(batch, {1, 4, 5}, 1), values(batch, {1, 4, 5}, 2));
  const auto [output, last] = lstm.forward(values(batch, {3, 4, 4}), state);
  return output + std::get<0>(last);
}

constexpr auto kCellTwice = [](auto& cell, Batch batch) -> Tensor {
  const Tensor state = cell.forward(values(batch, {4, 4}));
  return cell.forward(values(batch, {4, 4}, 1), state);
};

Tensor run_lstm_cell_twice(nn::LSTMCellImpl& cell, Batch batch) {
  const auto state = cell.forward(values(batch, {4, 4}));
  return std::get<0>(cell.forward(values(batch, {4, 4}, 1), state));
}

Tensor self_attention(nn::MultiheadAttentionImpl& attention, Batch batch) {
  const Tensor x = values(batch, {5, 4, 8});
  return std::get<0>(attention.forward(x, x, x));
}

Tensor cross_attention(nn::MultiheadAttentionImpl& attention, Batch batch) {
  return std::get<0>(attention.forward(values(batch, {5, 4, 8}),
                                       values(batch, {3, 4, 6}, 1),
                                       values(batch, {3, 4, 6}, 2)));
}

Tensor masked_attention(nn::MultiheadAttentionImpl& attention, Batch batch) {
  const Tensor x = values(batch, {5, 4, 8});
  const Tensor mask = torch::ones({5, 5}, torch::kBool).triu(1);
  return std::get<0>(attention.forward(x, x, x, /*key_padding_mask=*/{},
                                       /*need_weights=*/false, mask));
}

constexpr auto kTwoSequences = [](auto& layer, Batch batch) -> Tensor {
  return layer.forward(values(batch, {3, 4, 8}), values(batch, {5, 4, 8}, 1));
};

nn::TransformerEncoderLayerOptions encoder_layer() {
  return nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(
      0);
}

nn::TransformerDecoderLayerOptions decoder_layer() {
  return nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(
      0);
}

ModulePtr make_encoder() {
  nn::TransformerEncoderOptions options(
      nn::TransformerEncoderLayer(encoder_layer()), 2);
  options.norm(nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({8}))));
  return nn::TransformerEncoder(options).ptr();
}

ModulePtr make_decoder() {
  return nn::TransformerDecoder(
             nn::TransformerDecoderOptions(
                 nn::TransformerDecoderLayer(decoder_layer()), 2))
      .ptr();
}

}  // namespace

std::vector<LayerCase> recurrent_cases() {
  const auto rnn = nn::RNNOptions(4, 5);
  const auto lstm = nn::LSTMOptions(4, 5);
  const auto gru = nn::GRUOptions(4, 5);
  return {
      layer_with<nn::RNN>("RNN", kSequence, nn::RNNOptions(rnn).num_layers(2)),
      layer_with<nn::RNN>("RNNRelu", kSequence,
                          nn::RNNOptions(rnn).nonlinearity(torch::kReLU)),
      layer_with<nn::RNN>("RNNPacked", kPacked, rnn),
      layer_with<nn::LSTM>("LSTM", kSequence, lstm),
      layer_with<nn::LSTM>(
          "LSTMBidirectional", kSequence,
          nn::LSTMOptions(lstm).num_layers(2).bidirectional(true)),
      layer_with<nn::LSTM>("LSTMProjection", kSequence,
                           nn::LSTMOptions(lstm).proj_size(3)),
      layer_with<nn::LSTM>("LSTMNoBias", kSequence,
                           nn::LSTMOptions(lstm).bias(false)),
      layer_with<nn::LSTM>("LSTMPacked", kPacked, lstm),
      layer_with<nn::LSTM>("LSTMGivenState", run_lstm_with_state, lstm),
      layer_with<nn::LSTM>("LSTMFlattenParameters", kFlattened,
                           nn::LSTMOptions(lstm).num_layers(2)),
      layer_with<nn::GRU>("GRU", kSequence, gru),
      layer_with<nn::GRU>("GRUBatchFirst", kSequence,
                          nn::GRUOptions(gru).batch_first(true)),
      layer_with<nn::GRU>("GRUPackedBidirectional", kPacked,
                          nn::GRUOptions(gru).bidirectional(true)),
      layer_with<nn::GRU>("GRUFlattenParameters", kFlattened, gru),
      layer_with<nn::RNNCell>("RNNCell", kCellTwice, 4, 5),
      layer_with<nn::GRUCell>("GRUCell", kCellTwice, 4, 5),
      layer_with<nn::LSTMCell>("LSTMCell", run_lstm_cell_twice, 4, 5),
      layer_with<nn::LSTMCell>("LSTMCellNoBias", run_lstm_cell_twice,
                               nn::LSTMCellOptions(4, 5).bias(false)),
  };
}

std::vector<LayerCase> attention_cases() {
  const auto attention = nn::MultiheadAttentionOptions(8, 2);
  return {
      layer_with<nn::MultiheadAttention>("MultiheadAttention", self_attention,
                                         attention),
      layer_with<nn::MultiheadAttention>("MultiheadAttentionMasked",
                                         masked_attention, attention),
      layer_with<nn::MultiheadAttention>(
          "MultiheadAttentionNoBias", self_attention,
          nn::MultiheadAttentionOptions(attention).bias(false)),
      layer_with<nn::MultiheadAttention>(
          "MultiheadAttentionKdimVdimBiasKv", cross_attention,
          nn::MultiheadAttentionOptions(attention)
              .kdim(6)
              .vdim(6)
              .add_bias_kv(true)
              .add_zero_attn(true)),
      layer<nn::TransformerEncoderLayer>("TransformerEncoderLayer", {5, 4, 8},
                                         encoder_layer()),
      layer_with<nn::TransformerDecoderLayer>("TransformerDecoderLayer",
                                              kTwoSequences, decoder_layer()),
      {.name = "TransformerEncoder",
       .make = make_encoder,
       .forward =
           [](nn::Module& module, Batch batch) {
             auto& encoder = dynamic_cast<nn::TransformerEncoderImpl&>(module);
             return encoder.forward(values(batch, {5, 4, 8}));
           }},
      {.name = "TransformerDecoder",
       .make = make_decoder,
       .forward =
           [](nn::Module& module, Batch batch) {
             return kTwoSequences(
                 dynamic_cast<nn::TransformerDecoderImpl&>(module), batch);
           }},
      layer_with<nn::Transformer>(
          "Transformer", kTwoSequences,
          nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(12).dropout(0)),
  };
}

}  // namespace tessera::testing
