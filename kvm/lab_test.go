package kvm_test

func childOfLab() bool { return false }
