"""Recurrent networks over whole sequences: RNN, LSTM, GRU."""
