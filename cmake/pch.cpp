// Carries the precompiled header (cmake/pch.h) and nothing else.
